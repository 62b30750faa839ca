//! Which of the devices that the kubelet takes for free are best lent together.
//!
//! The kubelet may ask before it has taken in what the last allocation left of a GPU: what the
//! ledger has no room for is then among those that it names, and a container that were given it
//! would be refused.

use std::collections::BTreeMap;

use super::{Health, Ledger, device_gpu};

/// What a GPU has for the container.
struct Candidate<'a> {
    gpu: &'a str,
    /// Those that the kubelet takes for free, by number.
    named: Vec<&'a String>,
    /// Of these, what there is room for.
    usable: Vec<&'a String>,
    /// Units of the resource that are left.
    room: u32,
}

impl Ledger {
    /// The devices that are best lent together: all of one GPU, the fullest that has enough, so
    /// that others stay whole.
    pub fn preferred(
        &self,
        resource: &str,
        available: &[String],
        must_include: &[String],
        units: usize,
    ) -> Vec<String> {
        let wanted = units.saturating_sub(must_include.len());
        let bound = must_include.iter().find_map(|id| device_gpu(id)).map(|(gpu, _)| gpu);
        let candidates = self.candidates(resource, available, must_include);
        let best = |ids_of: for<'a, 'b> fn(&'b Candidate<'a>) -> &'b Vec<&'a String>| {
            candidates
                .iter()
                .filter(|candidate| bound.is_none_or(|gpu| gpu == candidate.gpu))
                .filter(|candidate| ids_of(candidate).len() >= wanted)
                .min_by_key(|candidate| (candidate.room, ids_of(candidate).len(), candidate.gpu))
                .map(|candidate| ids_of(candidate).clone())
        };
        // On several GPUs, or where there is no room, it is refused later, with the reason.
        let ids = best(|candidate| &candidate.usable)
            .or_else(|| best(|candidate| &candidate.named))
            .unwrap_or_else(|| candidates.iter().flat_map(|one| one.named.clone()).collect());
        must_include.iter().chain(ids).take(units).cloned().collect()
    }

    /// By GPU, in the order of their names.
    fn candidates<'a>(
        &self,
        resource: &str,
        available: &'a [String],
        must_include: &[String],
    ) -> Vec<Candidate<'a>> {
        let mut by_gpu: BTreeMap<&str, Vec<(u32, &String)>> = BTreeMap::new();
        for id in available.iter().filter(|id| !must_include.contains(id)) {
            if let Some((gpu, number)) = device_gpu(id) {
                by_gpu.entry(gpu).or_default().push((number, id));
            }
        }
        let lent = self.lent_devices(resource);
        let known = |gpu: &str| Some((self.resource(resource)?, self.gpus.get(gpu)?));
        let candidate = |(gpu, mut numbered): (&'a str, Vec<(u32, &'a String)>)| {
            numbered.sort();
            let named: Vec<&String> = numbered.into_iter().map(|(_, id)| id).collect();
            let known = known(gpu);
            let is_healthy = known.is_some_and(|(_, gpu)| gpu.health == Health::Healthy);
            let room = known.map_or(0, |(resource, gpu)| self.room(resource, gpu));
            let takes_room = |id: &&String| {
                device_gpu(id).is_some_and(|(of, _)| of == gpu) && !lent.contains(*id)
            };
            let bound = u32::try_from(must_include.iter().filter(takes_room).count());
            let mut left = room.saturating_sub(bound.unwrap_or(u32::MAX));
            // What was lent before and is free by the kubelet's word takes no more room.
            let mut fits = |id: &&String| {
                let is_lent = lent.contains(*id);
                let fits = is_lent || left > 0;
                left -= u32::from(fits && !is_lent);
                fits
            };
            let usable = named.iter().copied().filter(|id| is_healthy && fits(id)).collect();
            Candidate { gpu, named, usable, room }
        };
        by_gpu.into_iter().map(candidate).collect()
    }
}
