//! The file: JSON trace events, as `chrome://tracing` and Perfetto read them (Trace Event Format:
//! complete events `X`, instants `i`, pairs `b`/`e` and `s`/`f`, metadata `M`).
//!
//! Events are written as they come; their order does not matter to readers, whose clock is `ts`, in
//! microseconds. A driver call is a slice on its thread, work of a device one on the track of its
//! stream, and an arrow leads from the call to the work.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::Write;

use cuda_abi::functions::symbol_of_number;
use cuda_abi::types::CUresult;
use link::trace::{Annotation, Work, WorkKind};

/// Track numbers from here are not threads'.
const STREAMS: u32 = 1 << 28;
const DOMAINS: u32 = 1 << 29;
/// Streams of a device, at most.
const STREAMS_OF_DEVICE: u32 = 1 << 13;

/// Tracks of a process that get a name, and domains' that are told apart: more than a program has,
/// and no more than fit into memory.
const MOST_TRACKS: usize = 1 << 16;

/// How many events of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) kernels: u64,
    pub(super) copies: u64,
    pub(super) graphs: u64,
    pub(super) annotations: u64,
}

/// A traced process, and which of its tracks have a name.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u32,
    devices: HashMap<u32, String>,
    named: HashSet<u32>,
    /// Tracks of NVTX domains, by thread and domain.
    domains: HashMap<(u32, u64), u32>,
}

/// A driver call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) thread: u32,
    pub(super) function: u32,
    pub(super) result: u32,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Where the first command that it posted ends.
    pub(super) first: u64,
}

/// Work of a device, and the call that has asked for it.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    pub(super) device: u32,
    pub(super) work: Work,
    pub(super) call: Option<&'a Call>,
}

/// See the module's description.
pub(super) struct Writer<W> {
    out: W,
    is_first: bool,
    /// CLOCK_MONOTONIC at the trace's beginning.
    zero_ns: u64,
    began_unix_ns: u128,
    arrows: u64,
    counts: Counts,
    line: String,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W) -> std::io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Self {
            out,
            is_first: true,
            zero_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            began_unix_ns: since_epoch.unwrap_or_default().as_nanos(),
            arrows: 0,
            counts: Counts::default(),
            line: String::new(),
        })
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Ends the file; gives back what it was written to.
    pub(super) fn finish(mut self, lost: u64) -> std::io::Result<W> {
        write!(
            self.out,
            "\n],\"otherData\":{{\"producer\":\"openmps {}\",\"clock\":\"CLOCK_MONOTONIC\",\"began_monotonic_ns\":\"{}\",\"began_unix_ns\":\"{}\",\"lost_records\":\"{lost}\"}}}}\n",
            env!("CARGO_PKG_VERSION"),
            self.zero_ns,
            self.began_unix_ns
        )?;
        Ok(self.out)
    }

    /// Microseconds since the beginning.
    fn micros(&self, at_ns: u64) -> Micros {
        Micros(at_ns.saturating_sub(self.zero_ns))
    }

    /// Beginning and duration of what is shown from the trace's beginning on, though it may have
    /// begun before: with the whole duration it would cross what comes next.
    fn span(&self, start_ns: u64, end_ns: u64) -> (Micros, Micros) {
        let (start, end) = (self.micros(start_ns), self.micros(end_ns));
        let duration = Micros(end.0.saturating_sub(start.0));
        (start, duration)
    }

    fn event(&mut self, line: &str) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.is_first) {
            self.out.write_all(b",\n")?;
        }
        self.out.write_all(line.as_bytes())?;
        Ok(())
    }

    /// A process that is traced from here on.
    pub(super) fn process(&mut self, pid: u32, command: &str) -> anyhow::Result<Process> {
        let name = serde_json::to_string(command)?;
        self.event(&format!(
            "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"tid\":0,\"args\":{{\"name\":{name}}}}}"
        ))?;
        Ok(Process { pid, ..Process::default() })
    }

    /// A device that it has a session with.
    pub(super) fn device(&mut self, process: &mut Process, device: u32, name: &str) {
        process.devices.insert(device, name.to_owned());
    }

    fn name_track(
        &mut self,
        process: &mut Process,
        track: u32,
        name: impl FnOnce(&Process) -> String,
    ) -> anyhow::Result<()> {
        if process.named.contains(&track) || process.named.len() >= MOST_TRACKS {
            return Ok(());
        }
        process.named.insert(track);
        let (pid, name) = (process.pid, serde_json::to_string(&name(process))?);
        self.event(&format!(
            "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
        ))?;
        self.event(&format!(
            "{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{pid},\"tid\":{track},\"args\":{{\"sort_index\":{track}}}}}"
        ))
    }

    /// The name that a program gives a thread.
    pub(super) fn thread_name(
        &mut self,
        process: &mut Process,
        thread: u32,
        name: &str,
    ) -> anyhow::Result<()> {
        self.name_track(process, thread, |_| name.to_owned())
    }

    /// A driver call.
    pub(super) fn call(&mut self, process: &mut Process, call: &Call) -> anyhow::Result<()> {
        self.counts.calls += 1;
        // A library of another build may have functions that this one does not know.
        let name = symbol_of_number(call.function).unwrap_or("unknown function");
        let (pid, tid) = (process.pid, call.thread);
        let (ts, dur) = self.span(call.start_ns, call.end_ns);
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        _ = write!(
            line,
            "{{\"ph\":\"X\",\"cat\":\"driver\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur}"
        );
        if call.result != CUresult::SUCCESS.0 {
            let result = CUresult(call.result);
            let result = result.name().map_or("unknown".into(), |name| name.to_string_lossy());
            _ = write!(line, ",\"args\":{{\"result\":\"{result}\"}}");
        }
        line.push('}');
        self.event(&line)?;
        self.line = line;
        Ok(())
    }

    /// Work of a device, with the arrow from its call.
    pub(super) fn work(
        &mut self,
        process: &mut Process,
        placed: &Placed<'_>,
        name: &str,
    ) -> anyhow::Result<()> {
        let Placed { device, work, call } = placed;
        let stream = work.stream.min(STREAMS_OF_DEVICE - 1);
        let tid = STREAMS + device.min(&1023) * STREAMS_OF_DEVICE + stream;
        self.name_track(process, tid, |process| {
            let device_name = process.devices.get(device).map_or("", String::as_str);
            match work.stream {
                0 => format!("GPU {device} {device_name}: default stream"),
                stream => format!("GPU {device} {device_name}: stream {stream}"),
            }
        })?;
        let pid = process.pid;
        let (category, fixed, count) = match work.kind {
            WorkKind::Kernel => ("kernel", "kernel", &mut self.counts.kernels),
            WorkKind::Copy => ("copy", "copy", &mut self.counts.copies),
            WorkKind::Fill => ("fill", "fill", &mut self.counts.copies),
            WorkKind::Graph => ("graph", "graph launch", &mut self.counts.graphs),
        };
        *count += 1;
        let name = serde_json::to_string(if name.is_empty() { fixed } else { name })?;
        let (ts, dur) = self.span(work.start_ns, work.end_ns);
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        _ = write!(
            line,
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{name},\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\"args\":{{\"in_server_us\":{}",
            Micros(work.start_ns.saturating_sub(work.taken_ns))
        );
        if let Some(call) = call {
            let queued = Micros(work.start_ns.saturating_sub(call.start_ns));
            _ = write!(line, ",\"queued_us\":{queued}");
        }
        match work.kind {
            WorkKind::Kernel => {
                let ([gx, gy, gz], [bx, by, bz]) = (work.grid, work.block);
                _ = write!(line, ",\"grid\":\"{gx}x{gy}x{gz}\",\"block\":\"{bx}x{by}x{bz}\"");
                _ = write!(line, ",\"dynamic_shared_bytes\":{}", work.shared_bytes);
            }
            WorkKind::Copy | WorkKind::Fill => {
                _ = write!(line, ",\"bytes\":{}", work.size_bytes);
            }
            WorkKind::Graph => {}
        }
        if work.timed_together > 1 {
            _ = write!(line, ",\"timed_together\":{}", work.timed_together);
        }
        line.push_str("}}");
        self.event(&line)?;
        self.line = line;
        match call {
            Some(call) => self.arrow(pid, call, tid, work.start_ns),
            None => Ok(()),
        }
    }

    fn arrow(&mut self, pid: u32, from: &Call, tid: u32, to_ns: u64) -> anyhow::Result<()> {
        self.arrows += 1;
        let id = self.arrows;
        // An arrow does not go back in time; a clock's error is no reason to leave it out.
        let (begins, ends) = (self.micros(from.start_ns), self.micros(to_ns.max(from.start_ns)));
        let thread = from.thread;
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        _ = write!(
            line,
            "{{\"ph\":\"s\",\"cat\":\"launch\",\"name\":\"launch\",\"id\":{id},\"pid\":{pid},\"tid\":{thread},\"ts\":{begins}}},\n{{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"launch\",\"name\":\"launch\",\"id\":{id},\"pid\":{pid},\"tid\":{tid},\"ts\":{ends}}}"
        );
        self.event(&line)?;
        self.line = line;
        Ok(())
    }

    /// The track of an NVTX domain's ranges: the thread's own for the default domain, since only
    /// those are sure to nest with its calls.
    fn domain_track(
        &mut self,
        process: &mut Process,
        thread: u32,
        domain: u64,
        name: &str,
    ) -> anyhow::Result<u32> {
        if domain == 0 {
            return Ok(thread);
        }
        let next = DOMAINS + process.domains.len() as u32;
        let known = process.domains.get(&(thread, domain)).copied();
        let track = known.unwrap_or(next);
        if known.is_none() && process.domains.len() < MOST_TRACKS {
            process.domains.insert((thread, domain), track);
        }
        self.name_track(process, track, |_| format!("NVTX {name} (thread {thread})"))?;
        Ok(track)
    }

    /// A range that was pushed and popped.
    pub(super) fn range(
        &mut self,
        process: &mut Process,
        from: &Annotation,
        until_ns: u64,
        name: &str,
        domain: &str,
    ) -> anyhow::Result<()> {
        self.counts.annotations += 1;
        let tid = self.domain_track(process, from.thread, from.domain, domain)?;
        let (pid, name) = (process.pid, serde_json::to_string(name)?);
        let (ts, dur) = self.span(from.at_ns, until_ns);
        self.event(&format!(
            "{{\"ph\":\"X\",\"cat\":\"nvtx\",\"name\":{name},\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur}}}"
        ))
    }

    /// A range that was started and ended, perhaps by different threads.
    pub(super) fn free_range(
        &mut self,
        process: &Process,
        from: &Annotation,
        until_ns: u64,
        name: &str,
        domain: &str,
    ) -> anyhow::Result<()> {
        self.counts.annotations += 1;
        let category = if domain.is_empty() { "nvtx".to_owned() } else { format!("nvtx {domain}") };
        let (pid, tid, id) = (process.pid, from.thread, from.id);
        let (name, category) = (serde_json::to_string(name)?, serde_json::to_string(&category)?);
        let (begins, ends) = (self.micros(from.at_ns), self.micros(until_ns));
        self.event(&format!(
            "{{\"ph\":\"b\",\"cat\":{category},\"name\":{name},\"id\":\"{pid}.{id}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{begins}}},\n{{\"ph\":\"e\",\"cat\":{category},\"name\":{name},\"id\":\"{pid}.{id}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ends}}}"
        ))
    }

    /// A mark.
    pub(super) fn mark(
        &mut self,
        process: &mut Process,
        at: &Annotation,
        name: &str,
        domain: &str,
    ) -> anyhow::Result<()> {
        self.counts.annotations += 1;
        let tid = self.domain_track(process, at.thread, at.domain, domain)?;
        let (pid, name, ts) = (process.pid, serde_json::to_string(name)?, self.micros(at.at_ns));
        self.event(&format!(
            "{{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"nvtx\",\"name\":{name},\"pid\":{pid},\"tid\":{tid},\"ts\":{ts}}}"
        ))
    }
}

/// Nanoseconds, shown as microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::functions::FUNCTION_NUMBERS;
    use serde_json::Value;

    #[test]
    fn what_is_written_is_json_whatever_names_say() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut process = writer.process(7, "a \"quoted\" \\ command\n").unwrap();
        writer.device(&mut process, 0, "GPU \"x\"");
        let zero = writer.zero_ns;
        let call = Call {
            thread: 8,
            function: FUNCTION_NUMBERS[0],
            result: 1,
            start_ns: zero + 1500,
            end_ns: zero + 2500,
            first: 16,
        };
        writer.call(&mut process, &call).unwrap();
        let work = Work {
            kind: WorkKind::Kernel,
            stream: 3,
            text: 1,
            position: 16,
            taken_ns: zero + 2000,
            start_ns: zero + 3000,
            end_ns: zero + 4001,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared_bytes: 7,
            timed_together: 2,
            size_bytes: 0,
        };
        writer
            .work(&mut process, &Placed { device: 0, work, call: Some(&call) }, "k<\"\u{1}")
            .unwrap();
        let at = Annotation { thread: 8, text: 0, at_ns: zero + 10, domain: 0, id: 4 };
        writer.range(&mut process, &at, zero + 20, "range", "").unwrap();
        writer.free_range(&process, &at, zero + 20, "free", "domain").unwrap();
        writer.mark(&mut process, &at, "mark", "").unwrap();
        assert_eq!(writer.counts().annotations, 3);
        let text = writer.finish(0).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let kernel = events.iter().find(|event| event["cat"] == "kernel").unwrap();
        assert_eq!((&kernel["ts"], &kernel["dur"]), (&Value::from(3.0), &Value::from(1.001)));
        assert_eq!(kernel["args"]["queued_us"], 1.5);
        assert_eq!(kernel["args"]["in_server_us"], 1.0);
        assert_eq!(events.iter().filter(|event| event["ph"] == "f").count(), 1);
    }

    #[test]
    fn what_began_before_the_trace_ends_when_it_ended() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut process = writer.process(7, "command").unwrap();
        let zero = writer.zero_ns;
        let (start_ns, end_ns) = (zero - 2000, zero + 1000);
        let call = Call { thread: 8, function: 0, result: 0, start_ns, end_ns, first: 16 };
        writer.call(&mut process, &call).unwrap();
        let at = Annotation { thread: 8, text: 0, at_ns: start_ns, domain: 0, id: 4 };
        writer.range(&mut process, &at, end_ns, "range", "").unwrap();
        let trace: Value = serde_json::from_slice(&writer.finish(0).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let slices: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(slices.len(), 2);
        for slice in slices {
            assert_eq!((&slice["ts"], &slice["dur"]), (&Value::from(0.0), &Value::from(1.0)));
        }
    }
}
