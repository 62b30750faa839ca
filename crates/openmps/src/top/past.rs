//! The last minute of a number, for lines that show how it went.

use std::collections::{HashMap, VecDeque};

use super::model::Scene;

/// How far back, in seconds.
pub(super) const MINUTE_S: f64 = 60.0;

/// Whose number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    server_pid: u32,
    gpu: u32,
    /// Of a GPU itself: none.
    client_id: Option<u64>,
}

impl Key {
    pub(super) fn of_client(server_pid: u32, gpu: u32, client_id: u64) -> Self {
        Self { server_pid, gpu, client_id: Some(client_id) }
    }

    fn of_gpu(server_pid: u32, gpu: u32) -> Self {
        Self { server_pid, gpu, client_id: None }
    }
}

/// A number's last minute: for how many seconds each value held, the latest last.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Past(VecDeque<(f64, f64)>);

impl Past {
    pub(super) fn add(&mut self, seconds: f64, value: f64) {
        self.0.push_back((seconds, value));
        let mut whole: f64 = self.0.iter().map(|(seconds, _)| seconds).sum();
        while let Some((first, _)) = self.0.front()
            && whole - first >= MINUTE_S
        {
            whole -= first;
            self.0.pop_front();
        }
    }

    /// Over the minute, or what is known of it.
    pub(super) fn mean(&self) -> Option<f64> {
        let whole: f64 = self.0.iter().map(|(seconds, _)| seconds).sum();
        let sum: f64 = self.0.iter().map(|(seconds, value)| seconds * value).sum();
        (whole > 0.0).then(|| sum / whole)
    }

    /// The minute in so many parts, the latest last: the mean of each, if anything is known of it.
    pub(super) fn parts(&self, count: usize) -> Vec<Option<f64>> {
        let part_s = MINUTE_S / count.max(1) as f64;
        let mut sums = vec![(0.0, 0.0); count];
        let mut end = MINUTE_S;
        for (seconds, value) in self.0.iter().rev() {
            let begin = (end - seconds).max(0.0);
            for (index, sum) in sums.iter_mut().enumerate() {
                let (from, to) = (index as f64 * part_s, (index + 1) as f64 * part_s);
                let shared = (to.min(end) - from.max(begin)).max(0.0);
                *sum = (sum.0 + shared, sum.1 + shared * value);
            }
            end = begin;
        }
        // Less than a tenth of a part says nothing of it.
        let known = |(seconds, sum): (f64, f64)| (seconds > part_s / 10.0).then(|| sum / seconds);
        sums.into_iter().map(known).collect()
    }
}

/// Of all that is on the screen.
#[derive(Debug, Default)]
pub(super) struct Pasts(HashMap<Key, Past>);

impl Pasts {
    /// Adds what a scene says of the time since the one before, forgets who is not in it any more,
    /// and gives each of its lines its minute.
    pub(super) fn note(&mut self, scene: &mut Scene, seconds: f64) {
        let mut kept = HashMap::new();
        let mut add = |key: Key, value: f64| -> Past {
            let mut past = self.0.remove(&key).unwrap_or_default();
            past.add(seconds, value);
            kept.insert(key, past.clone());
            past
        };
        for gpu in &mut scene.gpus {
            gpu.past = add(Key::of_gpu(gpu.server_pid, gpu.index), gpu.busy_percent);
        }
        for row in &mut scene.rows {
            row.past = add(row.key(), row.busy_percent);
        }
        self.0 = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_kept_and_shown_in_parts() {
        let mut past = Past::default();
        assert_eq!((past.mean(), past.parts(2)), (None, vec![None, None]));
        (0..30).for_each(|_| past.add(1.0, 10.0));
        assert_eq!(past.parts(2), [None, Some(10.0)]);
        (0..30).for_each(|_| past.add(1.0, 20.0));
        assert_eq!(past.parts(2), [Some(10.0), Some(20.0)]);
        assert_eq!(past.parts(4), [Some(10.0), Some(10.0), Some(20.0), Some(20.0)]);
        assert_eq!(past.mean(), Some(15.0));
        (0..60).for_each(|_| past.add(1.0, 30.0));
        assert_eq!((past.mean(), past.0.len()), (Some(30.0), 60));
        past.add(3600.0, 1.0);
        assert_eq!(past.parts(1), [Some(1.0)]);
    }
}
