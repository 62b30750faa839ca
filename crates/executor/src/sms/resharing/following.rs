//! A session follows the orders that it is given.

use super::*;
use crate::recovery::relocation::Due;
use crate::session::state::State;
use crate::sms::session_partitions::Target;
use link::wire::partition::OWN_SHARE;

impl State {
    /// Takes its share of the SMs, before the session's first command.
    pub(crate) fn take_share(&mut self, wish: &ShareWish) -> Result<(), Failure> {
        self.shared.partitions.announced.wait();
        let placed = self.shared.partitions.place(&self.shared.context, wish, None)?;
        if let (Some(given), Some(wanted)) = (placed.multiprocessors(), wish.multiprocessors)
            && given != wanted
        {
            log_server!("{} has {given} SMs instead of {wanted}", self.handle.label);
        }
        self.note_share(placed);
        self.tell_share(0, None);
        Ok(())
    }

    /// Makes a share the session's, and returns what must move.
    fn note_share(&mut self, placed: Placed) -> Vec<(u32, Target)> {
        let count = placed.multiprocessors().unwrap_or(self.shared.multiprocessors);
        *self.handle.share.lock().unwrap_or_else(PoisonError::into_inner) = placed.share.clone();
        let moves = self.partitions.set_own(placed);
        self.handle.memory.set_multiprocessors(count);
        moves
    }

    fn tell_share(&self, order: u64, refused: Option<String>) {
        let own = self.partitions.own().map(|own| own.multiprocessors());
        let multiprocessors = own.unwrap_or(self.shared.multiprocessors);
        let session = self.handle.id;
        self.shared.tell(&FromExecutor::Reshared { session, order, multiprocessors, refused });
    }

    /// Between two commands: takes the mail, and says when an order is in force.
    pub(crate) fn see_to_shares(&mut self) {
        if self.handle.mailbox.has_mail() {
            for mail in self.handle.mailbox.take() {
                self.take_mail(mail);
            }
        }
        if self.resharing.is_active() && self.resharing.asked == 0 && !self.is_remaking() {
            self.finish_move();
        }
    }

    fn take_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Share { order, placed } => {
                self.forget_fence();
                self.resharing.orders.push(order);
                match placed {
                    Ok(placed) => self.begin_move(placed),
                    Err(message) => self.resharing.refused = Some(message),
                }
            }
            Mail::Contexts { made } => {
                self.resharing.asked = self.resharing.asked.saturating_sub(1);
                let mut moved = Vec::new();
                for (number, made) in made {
                    match made {
                        Ok(partition) => {
                            self.move_streams(number, Some(Arc::clone(&partition)));
                            if self.partitions.set_current(number, partition) {
                                moved.push(number);
                            }
                        }
                        Err(message) => self.resharing.refused = Some(message),
                    }
                }
                self.remake_graphs(&moved);
            }
            Mail::Graph { graph, serial, made } => self.graph_remade(graph, serial, made),
            Mail::Quarantine => self.relocation.due = Due::Look,
            Mail::Return => self.relocation.due = Due::Return,
            Mail::Away => self.relocation.away = Some(Instant::now()),
        }
    }

    fn begin_move(&mut self, placed: Placed) {
        let moves = self.note_share(placed);
        let own = self.partitions.own();
        self.move_streams(OWN_SHARE, own.clone());
        let (mut moved, mut wanted) = (vec![OWN_SHARE], Vec::new());
        for (number, target) in moves {
            match target {
                Target::Known(partition) => {
                    self.move_streams(number, Some(Arc::clone(&partition)));
                    self.partitions.set_current(number, partition);
                    moved.push(number);
                }
                Target::Taken(count) => wanted.push((number, count)),
            }
        }
        if !wanted.is_empty() {
            self.resharing.asked += 1;
            let session = Arc::clone(&self.handle);
            self.mover.send(Job::Contexts { session, outer: own, wanted });
        }
        self.remake_graphs(&moved);
    }

    fn move_streams(&mut self, number: u32, to: Option<Arc<Partition>>) {
        if let Err(failure) = self.streams.move_to(&self.shared.context, number, to) {
            self.resharing.refused = Some(refusal(failure));
        }
    }

    /// All has been moved: waits for what was submitted before, then says so.
    fn finish_move(&mut self) {
        if self.resharing.fence.is_none() {
            let words = &self.handle.words;
            let fence = self.streams.fence(&self.shared.context, |slot| words.completed(slot));
            self.resharing.fence = Some(fence);
        }
        let (driver, shared) = (self.driver(), Arc::clone(&self.shared));
        let Some(fence) = &mut self.resharing.fence else { return };
        while let Some(&event) = fence.last() {
            // SAFETY: a live event of this session, which nothing names once it was reached.
            unsafe {
                let reached = driver.cuEventQuery(event);
                if reached == CUresult::ERROR_NOT_READY {
                    return;
                }
                let _ = shared.context.check(reached);
                let _ = driver.cuEventDestroy_v2(event);
            }
            fence.pop();
        }
        self.resharing.fence = None;
        let refused = self.resharing.refused.take();
        for order in std::mem::take(&mut self.resharing.orders) {
            self.tell_share(order, refused.clone());
        }
    }

    /// At the session's end, or when another order comes first.
    pub(crate) fn forget_fence(&mut self) {
        let fence = self.resharing.fence.take();
        self.context().end_events(fence.into_iter().flatten());
    }
}
