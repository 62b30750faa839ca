//! Holds the code to the files that say what each version of the client wire is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, to_value};

use super::described::{Described, Layout, described};
use super::*;
use crate::trace::{self, Annotation, Record, Work, WorkKind};
use crate::wire::attach::*;
use crate::wire::command::{FunctionAttribute, Header, LaunchAttribute, Opcode, Parameter, Role};
use crate::wire::layout::*;
use crate::wire::trace::{FromTraced, SOCKET_VARIABLE, ToTraced, TraceFile};
use crate::wire::virtual_memory::{self, MemoryFile};
use crate::wire::{array, graph, partition, query, sharing};

/// Digests of the files, which never change again.
const FILES: &[(u32, u64)] = &[(1, 0x630c_45fc_0384_0470)];

const WHAT_TO_DO: &str = "
Libraries that speak this version are in containers, and nobody can change them. So
- undo the change; or
- keep the old form, add the new one beside it (a command: a new row with a new number), use it only
  where both sides have agreed on the new version, raise NEWEST in crates/link/src/wire/version.rs,
  and run this test, which writes the file that is missing; or
- drop the version: raise OLDEST as well, and delete its file.
CONTRIBUTING.md, \"The client wire\", has more. A field of a JSON packet that may be absent
(serde's `default`) needs none of this.
";

#[test]
fn the_client_wire_is_what_its_files_say() {
    let said = description();
    let ours = Versions::ours();
    for version in ours.range() {
        let frozen = read(version, &said);
        let gone: Vec<_> = frozen.difference(&said).collect();
        let new = said.difference(&frozen).filter(|line| !line.ends_with(OPTIONAL));
        // What a newer version has beside is no change of this one.
        let new: Vec<_> = new.filter(|_| version == ours.newest).collect();
        assert!(
            gone.is_empty() && new.is_empty(),
            "the code differs from version {version} of the client wire ({}).\nThere, and not here: {gone:#?}\nHere, and not there: {new:#?}{WHAT_TO_DO}",
            file(version).display()
        );
    }
    assert_eq!(FILES.len() as u32, ours.newest - ours.oldest + 1, "one file for each version");
}

#[test]
fn versions_are_agreed_on_whatever_a_library_says() {
    let versions = |oldest, newest| Versions { oldest, newest };
    let server = versions(2, 4);
    for (library, agreed) in [((2, 4), 4), ((1, 2), 2), ((4, 9), 4), ((3, 3), 3)] {
        assert_eq!(agree(versions(library.0, library.1), server), Ok(agreed), "{library:?}");
    }
    assert_eq!(agree(versions(1, u32::MAX), server), Ok(4));
    for (oldest, newest) in [(0, 0), (0, 3), (4, 3), (u32::MAX, 0), (u32::MAX, 1)] {
        let refused = agree(versions(oldest, newest), server);
        assert_eq!(refused, Err(VersionError::Unnamed { server }), "{oldest} {newest}");
    }
    let told = |oldest, newest| agree(versions(oldest, newest), server).unwrap_err().to_string();
    let old = told(1, 1);
    assert!(old.contains("speaks version 1") && old.contains("daemon versions 2 to 4"), "{old}");
    assert!(old.contains("update the library"), "{old}");
    let new = told(5, 6);
    assert!(new.contains("versions 5 to 6") && new.contains("restart the daemon"), "{new}");
    assert!(told(u32::MAX, u32::MAX).contains("restart the daemon"));
    assert!(Versions::ours().oldest > 0 && Versions::ours().oldest <= Versions::ours().newest);
}

fn file(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("client_wire/{version}.txt"))
}

fn read(version: u32, said: &BTreeSet<String>) -> BTreeSet<String> {
    let path = file(version);
    if version == Versions::ours().newest && !path.exists() {
        let lines: Vec<&str> = said.iter().map(String::as_str).collect();
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let known = FILES.iter().find(|(of, _)| *of == version).map(|(_, digest)| *digest);
    assert_eq!(
        known,
        Some(digest),
        "{} never changes once it is there. Of a new version, note {digest:#x} in FILES.{WHAT_TO_DO}",
        path.display()
    );
    text.lines().map(str::to_owned).collect()
}

/// The client wire as this code has it, in lines.
fn description() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    commands(&mut lines);
    constants(&mut lines);
    shared_memory(&mut lines);
    packets(&mut lines);
    traces(&mut lines);
    lines
}

fn text(layout: &Layout) -> String {
    let fields = layout.fields.iter();
    let fields = fields.map(|f| format!("{} {}@{}, ", f.of_type, f.name, f.offset_bytes));
    format!("{{ {}{} bytes }}", fields.collect::<String>(), layout.size_bytes)
}

fn commands(lines: &mut BTreeSet<String>) {
    for &opcode in Opcode::ALL {
        let (body, answer) = opcode.layouts();
        let number = opcode as u16;
        let role = if opcode.facts().role == Role::Node { ", a graph's node as well" } else { "" };
        lines.insert(format!(
            "command {number:03} {opcode:?} {} -> {}{role}",
            text(&body),
            text(&answer)
        ));
    }
    // What follows bodies and answers, or is in them.
    let parts = [
        Parameter::LAYOUT,
        FunctionAttribute::LAYOUT,
        LaunchAttribute::LAYOUT,
        array::ArrayEnd::LAYOUT,
        graph::NodeHeader::LAYOUT,
        graph::DescriptionHeader::LAYOUT,
        graph::Dependency::LAYOUT,
        partition::SmResource::LAYOUT,
        sharing::Token::LAYOUT,
    ];
    lines.extend(parts.map(|part| format!("part {} {}", part.name, text(&part))));
}

fn constants(lines: &mut BTreeSet<String>) {
    macro_rules! constants {
        ($($place:ident :: $name:ident),* $(,)?) => {
            $(lines.insert(format!("constant {} = {:?}", stringify!($name), $place::$name));)*
        };
    }
    use crate::wire::{self, attach, command, layout};
    use crate::{completion, socket};
    constants! {
        command::ALIGN, command::MAX_COMMAND_BYTES, command::NO_CALL, command::MAX_EVENTS,
        command::MAX_MODULES, command::MAX_IMAGE_BYTES, command::MAX_FUNCTIONS,
        command::MAX_REGIONS, command::LEGACY_STREAM, command::DEFAULT_STREAM,
        command::LINKED_TEXTS, command::REGION_PLAIN, command::REGION_PINNED,
        command::CACHE_CONFIG,
        array::MAX_ARRAYS, array::NO_ARRAY, array::TEXTURE, array::SURFACE,
        graph::MAX_GRAPHS, graph::MAX_NODES, graph::MAX_EDGES, graph::MAX_SECTIONS,
        graph::MAX_DESCRIPTION_BYTES, graph::NODE_ALIGN,
        partition::OWN_SHARE, partition::MAX_PARTITIONS, partition::MAX_RESOURCES,
        partition::MAX_GROUPS, partition::ROUND_DOWN, partition::ROUND_UP,
        partition::MAX_DESCRIBED,
        query::MAX_ACTIVE_CLUSTERS, query::MAX_CLUSTER_SIZE, query::AVAILABLE_SHARED,
        query::TENSOR_TILED, query::TENSOR_IM2COL, query::TENSOR_IM2COL_WIDE,
        sharing::MAX_SHARED,
        virtual_memory::MAX_MEMORIES, virtual_memory::ACCESS_NONE,
        virtual_memory::ACCESS_READ_WRITE, virtual_memory::SHARING_NONE,
        virtual_memory::SHARING_DESCRIPTOR,
        layout::RING_BYTES, layout::RING_OFFSET, layout::CALL_SLOTS, layout::CALL_REPLY_BYTES,
        layout::CALLS_OFFSET, layout::SESSION_BYTES, layout::STREAM_SLOTS,
        layout::COMPLETION_WORDS_BYTES, layout::GUARD_RECORD_OFFSET, layout::GUARD_RECORD_WORDS,
        layout::COMPLETION_BYTES, layout::LAST_WORDS_BYTES, layout::CALL_IDLE,
        layout::CALL_PENDING, layout::CALL_PENDING_ASLEEP, layout::CALL_DONE,
        completion::CORES_SPARE, completion::CORES_WANTED, completion::CORES_PLENTY,
        completion::GUARD_ERROR,
        attach::MAX_VARIABLE_BYTES, socket::MAX_DESCRIPTORS,
        wire::MAX_PACKET_BYTES, wire::DAEMON_SOCKET,
    }
}

described!(Header { opcode: u16, call_slot: u16, size_bytes: u32, context: u32, reserved: u32 });
described!(Shared {
    tail: u64,
    head: u64,
    consumer_asleep: u32,
    producer_asleep: u32,
    sleepers: u32,
    wake_epoch: u32,
    session_error: u32,
    refusal: u32,
    heartbeat: u32,
    multiprocessors: u32,
    crowded: u32,
    last_words: LastWords,
});
described!(LastWords { size_bytes: u32, text: bytes });
described!(CallSlot {
    state: u32,
    status: u32,
    reply_bytes: u32,
    claims: u32,
    _reserved: zero,
    reply: bytes,
});

fn shared_memory(lines: &mut BTreeSet<String>) {
    let parts = [Header::LAYOUT, Shared::LAYOUT, LastWords::LAYOUT, CallSlot::LAYOUT];
    lines.extend(parts.map(|part| format!("memory {} {}", part.name, text(&part))));
}

fn traces(lines: &mut BTreeSet<String>) {
    lines.insert(format!("trace {SOCKET_VARIABLE}, ring {}", trace::ring_layout()));
    let at = Annotation { thread: 1, text: 2, at_ns: 3, domain: 4, id: 5 };
    let work = Work {
        kind: WorkKind::Kernel,
        stream: 1,
        text: 2,
        position: 3,
        taken_ns: 4,
        start_ns: 5,
        end_ns: 6,
        grid: [7, 8, 9],
        block: [10, 11, 12],
        shared_bytes: 13,
        timed_together: 14,
        size_bytes: 15,
    };
    let call = Record::Call {
        thread: 1,
        function: 2,
        result: 3,
        device: 4,
        start_ns: 5,
        end_ns: 6,
        first: 7,
        last: 8,
    };
    let text = Record::Text { id: 1, is_last: true, length: 2, bytes: [3; trace::TEXT_BYTES] };
    let kinds = [WorkKind::Kernel, WorkKind::Copy, WorkKind::Fill, WorkKind::Graph];
    let work = kinds.map(|kind| {
        match kind {
            WorkKind::Kernel | WorkKind::Copy | WorkKind::Fill | WorkKind::Graph => {}
        }
        Record::Work(Work { kind, ..work })
    });
    let others = [
        call,
        text,
        Record::Push(at),
        Record::Pop(at),
        Record::Start(at),
        Record::End(at),
        Record::Mark(at),
        Record::ThreadName(at),
    ];
    for record in others.into_iter().chain(work) {
        // A new one is listed here as well.
        match record {
            Record::Call { .. } | Record::Text { .. } | Record::Push(_) | Record::Pop(_) => {}
            Record::Start(_) | Record::End(_) | Record::Mark(_) => {}
            Record::ThreadName(_) | Record::Work(_) => {}
        }
        let mut words = record.to_words().to_vec();
        while words.last() == Some(&0) {
            words.pop();
        }
        lines.insert(format!("trace {record:?} = {words:x?}"));
    }
}

/// Ends the line of a field that may be absent.
const OPTIONAL: &str = ", optional";

/// Whether the outermost object of a packet has one key, which says what the packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Tagged,
    Plain,
}

fn packets(lines: &mut BTreeSet<String>) {
    let versions = Versions { oldest: 1, newest: 2 };
    let some = || Some("text".to_owned());
    let limits = RequestedLimits {
        active_thread_percentage: some(),
        pinned_device_mem_limit: some(),
        memory_limit: some(),
        client_priority: some(),
        weight: some(),
        latency: some(),
        guard: some(),
        repeatable: some(),
        visible_devices: some(),
        device_max_connections: some(),
        per_context_partitioning: some(),
        isolation: some(),
        group: some(),
        reservation: some(),
        sm_partition: some(),
    };
    let command = "text".to_owned();
    let hello = ClientHello { versions, pid: 1, pid_namespace: 2, command, limits };
    let debugged = Hello::Debugged { versions, debugger: "text".into() };
    for hello in [Hello::Client(hello), debugged] {
        match hello {
            Hello::Client(_) | Hello::Debugged { .. } => {}
            // Of front ends, which are of the daemon's build.
            Hello::Trace { .. } | Hello::Ui { .. } => {}
        }
        packet(lines, "hello", Form::Tagged, &hello);
    }

    let refusal = || Refusal { code: 1, message: "text".into() };
    let welcome = Welcome {
        version: 1,
        client_id: 2,
        server_pid: 3,
        driver_version: 4,
        devices: vec![device()],
    };
    let replies =
        [HelloReply::Welcome(welcome), HelloReply::Refused(refusal()), HelloReply::Native];
    for reply in replies {
        match reply {
            HelloReply::Welcome(_) | HelloReply::Refused(_) | HelloReply::Native => {}
        }
        packet(lines, "hello's answer", Form::Tagged, &reply);
    }
    for code in [DeviceCode::PtxOnly, DeviceCode::MachineCode] {
        match code {
            DeviceCode::PtxOnly | DeviceCode::MachineCode => {}
        }
        packet(lines, "a device's code", Form::Plain, &code);
    }

    let requests = [
        ClientRequest::OpenContext { device: 1, active_thread_percentage: some() },
        ClientRequest::CloseContext { device: 1 },
        ClientRequest::FaultsDevice,
    ];
    for request in requests {
        match request {
            ClientRequest::OpenContext { .. }
            | ClientRequest::CloseContext { .. }
            | ClientRequest::FaultsDevice => {}
        }
        packet(lines, "request", Form::Tagged, &request);
    }
    let window = Window { base: 1, size_bytes: 2 };
    let opened = ContextOpened {
        context_id: 1,
        first: true,
        device_window: window,
        host_window: window,
        multiprocessors: Some(1),
    };
    let replies = [
        ClientReply::ContextOpened(opened),
        ClientReply::ContextClosed,
        ClientReply::FaultsDevice,
        ClientReply::Trace,
        ClientReply::Refused(refusal()),
    ];
    for reply in replies {
        match reply {
            ClientReply::ContextOpened(_)
            | ClientReply::ContextClosed
            | ClientReply::FaultsDevice
            | ClientReply::Trace
            | ClientReply::Refused(_) => {}
        }
        packet(lines, "request's answer", Form::Tagged, &reply);
    }
    packet(lines, "with a region's file", Form::Plain, &RegionFile { address: 1 });
    packet(lines, "with memory's file", Form::Plain, &MemoryFile { memory: 1 });
    packet(lines, "with a trace's file", Form::Plain, &TraceFile { trace: () });
    let name = "text".to_owned();
    let traced = [
        FromTraced::Hello { versions, pid: 1, command: "text".into() },
        FromTraced::Native,
        FromTraced::Attached,
        FromTraced::Session { device: 1, name },
        FromTraced::Stopped,
    ];
    for message in traced {
        match message {
            FromTraced::Hello { .. } | FromTraced::Session { .. } => {}
            FromTraced::Native | FromTraced::Attached | FromTraced::Stopped => {}
        }
        packet(lines, "from who is traced", Form::Tagged, &message);
    }
    let stop = ToTraced::Stop;
    match stop {
        ToTraced::Stop => {}
    }
    packet(lines, "to who is traced", Form::Tagged, &stop);
}

fn device() -> DeviceInfo {
    DeviceInfo {
        name: "text".into(),
        uuid: [1; 16],
        uuid_v2: [2; 16],
        pci_bus_id: "text".into(),
        total_memory_bytes: 1,
        told_memory_bytes: Some(1),
        attributes: vec![(1, 2)],
        stream_priorities: (1, 2),
        code: DeviceCode::PtxOnly,
        granularity_bytes: (1, 2),
        linear_texture_texels: [1; 5],
        peers: vec![PeerInfo { can_access: true, attributes: [1; 5] }],
        closed: true,
    }
}

/// Describes a packet that has all of its fields, and tries that it is read with others as well.
fn packet<T>(lines: &mut BTreeSet<String>, what: &str, form: Form, message: &T)
where
    T: Serialize + DeserializeOwned,
{
    let whole = to_value(message).unwrap();
    let is_read = |value: &Value| serde_json::from_value::<T>(value.clone()).is_ok();
    assert!(is_read(&whole), "{whole}");
    if let Value::String(word) = &whole {
        lines.insert(format!("packet {what}: \"{word}\""));
    }
    let mut pending = vec![String::new()];
    while let Some(place) = pending.pop() {
        let fields = match whole.pointer(&place) {
            Some(Value::Object(fields)) => fields,
            // Elements of a list are alike.
            Some(Value::Array(_)) => {
                pending.push(format!("{place}/0"));
                continue;
            }
            _ => continue,
        };
        let object = |value: &mut Value, change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
            change(value.pointer_mut(&place).unwrap().as_object_mut().unwrap());
        };
        if form == Form::Plain || !place.is_empty() {
            let mut with_another = whole.clone();
            object(&mut with_another, &|it| drop(it.insert("of the future".into(), 1.into())));
            assert!(is_read(&with_another), "{what}: unknown fields in {place} must be ignored");
        }
        for (name, value) in fields {
            let mut without = whole.clone();
            object(&mut without, &|it| drop(it.remove(name)));
            let optional = if is_read(&without) { OPTIONAL } else { "" };
            lines.insert(format!("packet {what}: {place}/{name} {}{optional}", kind(value)));
            pending.push(format!("{place}/{name}"));
        }
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(of) => format!("[{}]", of.iter().map(kind).collect::<Vec<_>>().join(", ")),
        Value::Object(_) => "object".into(),
    }
}
