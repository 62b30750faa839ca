//! Who gets a turn, and whose turn ends for it.

use super::{Contender, Fairness, Kind, Turn};

impl Fairness {
    /// Gives turns to those who wait, as there is room.
    pub(super) fn pass_on(&mut self) {
        if !self.is_contest {
            return;
        }
        let mut active: Vec<u64> = self.at_work().collect();
        let begins = self.clients.values().all(|contender| contender.turn.is_none());
        let waiting = self.contenders();
        let waiting = waiting.filter(|(_, it)| it.waits && it.turn.is_none());
        let mut order: Vec<_> = waiting
            .map(|(client, it)| {
                // What was submitted before this was a contest may be waiting for what its client
                // asks for.
                let comes_first = begins && it.is_at_work() && !it.leaves;
                (!comes_first, it.had, it.last_turn, client)
            })
            .collect();
        order.sort_unstable();
        // What the first has had who must wait.
        let mut first: Option<u128> = None;
        for (place, (_, had, _, client)) in order.into_iter().enumerate() {
            let mut has_room = self.has_room_beside(&active, client);
            if !has_room && first.is_none() && self.make_room_for(client) {
                active = self.at_work().collect();
                has_room = self.has_room_beside(&active, client);
                if !has_room {
                    // Some work has yet to end: what comes after must have room beside it.
                    active.push(client);
                }
            }
            if !has_room {
                first.get_or_insert(had);
                continue;
            }
            let kind = match first {
                None => Kind::Due,
                Some(_) if self.is_beside_all(&active, client) => Kind::Beside,
                Some(had) if self.is_far_ahead_of(client, had) => continue,
                Some(_) => Kind::Meanwhile,
            };
            active.push(client);
            self.give_turn(client, kind);
            if place == 0 {
                self.now = self.now.max(had);
            }
        }
    }

    fn is_far_ahead_of(&self, client: u64, had: u128) -> bool {
        self.clients.get(&client).is_some_and(|contender| contender.is_far_ahead_of(had))
    }

    fn has_room_beside(&self, active: &[u64], client: u64) -> bool {
        let others = active.iter().copied().filter(|&other| other != client);
        self.fit(&others.chain([client]).collect::<Vec<_>>())
    }

    /// Whether a client is in nobody's way.
    fn is_beside_all(&self, active: &[u64], client: u64) -> bool {
        let waiting = self.contenders().filter(|&(other, it)| it.waits && other != client);
        let mut waiting = waiting.map(|(other, _)| other);
        waiting.all(|other| self.is_beside(other, active, client))
    }

    /// Whether a client has room beside one that is to come, when that has come and others have
    /// what room they can.
    fn is_beside(&self, first: u64, active: &[u64], client: u64) -> bool {
        let mut with = vec![first];
        for &other in active.iter().filter(|&&other| other != client && other != first) {
            with.push(other);
            if !self.fit(&with) {
                with.pop();
            }
        }
        with.push(client);
        self.fit(&with)
    }

    /// Ends the turns that have had their time and are in a client's way. None, if it would still
    /// have no room when their work has ended.
    fn make_room_for(&mut self, client: u64) -> bool {
        let Some(had) = self.clients.get(&client).map(|contender| contender.had) else {
            return false;
        };
        let (mut may_end, mut stay) = (Vec::new(), vec![client]);
        for (holder, contender) in self.contenders() {
            match contender.turn {
                Some(turn) if turn.has_had_its_time() && contender.had >= had => {
                    may_end.push((contender.had, holder));
                }
                Some(_) => stay.push(holder),
                None => {}
            }
        }
        if !self.fit(&stay) {
            return false;
        }
        may_end.sort_unstable();
        let mut kept = Vec::new();
        for (_, holder) in may_end {
            stay.push(holder);
            if self.fit(&stay) {
                kept.push(holder);
            } else {
                stay.pop();
                self.clients.get_mut(&holder).into_iter().for_each(Contender::end_turn);
            }
        }
        for holder in kept {
            let kind = match self.is_beside_all(&stay, holder) {
                true => Kind::Beside,
                false => Kind::Meanwhile,
            };
            let Some(contender) = self.clients.get_mut(&holder) else { continue };
            contender.is_beside = kind == Kind::Beside;
            contender.turn.iter_mut().for_each(|turn| turn.kind = kind);
        }
        true
    }

    fn give_turn(&mut self, client: u64, kind: Kind) {
        let Some(contender) = self.clients.get_mut(&client) else { return };
        contender.turn = Some(Turn { used_ns: 0, kind });
        contender.is_beside = kind == Kind::Beside;
        contender.leaves = false;
        contender.last_turn = self.turns_given;
        self.turns_given += 1;
        self.served.push(client);
    }
}
