//! Work in a stream: done in its order, or, while the stream is captured, made a node of the graph.

use std::sync::Arc;

use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::graph::NodeKind;
use crate::api::objects::Stream;

/// Submits work to a stream.
pub(crate) fn submit(driver: &Driver, stream: &Arc<Stream>, work: NodeKind) -> Answer {
    match driver.graphs.captures.active(stream.captured())? {
        Some(capture) => {
            // The node keeps the stream's priority, for launches that ask for nodes' own.
            let work = match work {
                NodeKind::Kernel(kernel) => NodeKind::Kernel(kernel.prioritised(stream.priority())),
                other => other,
            };
            capture.add(stream.captured(), work).map(|_| ())
        }
        None => {
            let _submission = driver.stalls.submission();
            let priority = work.own_priority().unwrap_or(stream.priority());
            let ops = work.ops(driver, priority)?;
            Ok(driver.engine.enqueue_all(stream.id, ops)?)
        }
    }
}
