//! Times calls of a driver: the median of many, within a budget.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::driver::DriverError;

/// What one call costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallCost {
    /// The driver function, several that are called one after the other, or what they do.
    pub call: String,
    /// Of one call, or of the several.
    pub time_ns: f64,
}

/// A call that takes long is timed at least so often.
const LEAST_BATCHES: usize = 5;

/// Collects costs.
#[derive(Debug)]
pub(crate) struct Timer {
    budget: Duration,
    /// Calls between two looks at the clock.
    batch: u32,
    pub(crate) costs: Vec<CallCost>,
}

impl Timer {
    /// A timer that gives each call this time, and looks at the clock after every `batch` of them.
    pub(crate) fn new(budget: Duration, batch: u32) -> Self {
        Self { budget, batch, costs: Vec::new() }
    }

    /// Times what `body` does; its cost is the median batch's.
    pub(crate) fn time(
        &mut self,
        call: &str,
        mut body: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let start = Instant::now();
        let mut batches_ns = Vec::new();
        while batches_ns.len() < LEAST_BATCHES || start.elapsed() < self.budget {
            let began = Instant::now();
            for _ in 0..self.batch {
                body()?;
            }
            batches_ns.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(self.batch));
        }
        batches_ns.sort_by(f64::total_cmp);
        let time_ns = batches_ns[batches_ns.len() / 2];
        self.costs.push(CallCost { call: call.to_owned(), time_ns });
        Ok(())
    }
}
