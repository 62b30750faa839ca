//! Mutated words of front ends, clients and settings into what the daemon makes of them, apart from
//! its sockets. `cargo xtask fuzz texts` goes on for longer.

mod mutated;

use std::path::Path;

use control::core::command::parse_line;
use control::core::group_text::{parse_groups, parse_profiles};
use control::core::origin::{
    ControlGroup, can_tell_user, is_in_nested_pid_namespace, is_same_uid_map,
};
use control::http::Address;
use link::wire::attach::Hello;
use link::wire::ui::UiRequest;
use settings::{Memory, Percentage, parse_memory_list};

/// One of each message that a front end, or a client by the daemon's or a group's socket, can begin
/// with.
const MESSAGES: &[&str] = &[
    r#"{"ui":{"protocol":1}}"#,
    r#"{"client":{"versions":{"oldest":1,"newest":1},"pid":7,"pid_namespace":1,"command":"x","limits":{"active_thread_percentage":"5","pinned_device_mem_limit":"0=4G","group":"a","weight":"3"}}}"#,
    r#"{"debugged":{"versions":{"oldest":1,"newest":1},"debugger":"cuda-gdb"}}"#,
    r#"{"trace":{"protocol":1,"pid":7}}"#,
    r#""state""#,
    r#"{"command":{"line":"ps -p 1"}}"#,
    r#"{"limit":{"target":{"group":"a*"},"limits":{"percentage":30.0,"memory":{"device":0,"limit_bytes":4096},"weight":3}}}"#,
    r#"{"limit":{"target":{"client":7},"limits":{"percentage":null,"memory":null}}}"#,
    r#"{"reserve":{"name":"night","device":0,"multiprocessors":16}}"#,
    r#"{"release":{"name":"night"}}"#,
    r#"{"open_socket":{"directory":"/run/openmps/a","group":"a","devices":["GPU-1"],"domain":"user","weight":2}}"#,
    r#"{"close_socket":{"directory":"/run/openmps/a"}}"#,
];
const LINES: &[&str] = &[
    "get_server_list",
    "start_server -uid 1000",
    "shutdown_server 975 -f",
    "get_device_client_list 975",
    "ps -p 975",
    "quit -t 10",
    "set_default_active_thread_percentage 50",
    "set_active_thread_percentage 975 12.5",
    "set_default_device_pinned_mem_limit 0 4G",
    "set_device_pinned_mem_limit 975 GPU-12345678 512M",
    "set_default_client_priority 1",
    "terminate_client 975 976",
    "device_query 975 --csv",
];
const SETTINGS: &[&str] = &[
    "tenant memory=4G sm-percent=30 weight=3; /jobs/* memory=8G",
    "quarter sm-percent=25 memory=10G",
    "0=4G,1=512M,GPU-12345678=1G",
    "127.0.0.1:9400",
    "unix:/run/openmps/metrics",
    "[::1]:9400",
    "12.5",
    "10G",
];
const KERNELS: &[&str] = &[
    "0::/system.slice/docker-1.scope\n",
    "9:name=systemd:/\n4:memory:/process/52\n0::/\n",
    "0::/../../kubepods/a/b\n",
    "Name:\tsleep\nNSpid:\t123\t7\n",
    "         0       1000          1\n         1     100000      65536\n",
];

#[test]
fn mutated_texts_of_messages() {
    for text in MESSAGES {
        let hello = serde_json::from_str::<Hello>(text).is_ok();
        let request = serde_json::from_str::<UiRequest>(text).is_ok();
        assert!(hello || request, "no message to begin with: {text}");
    }
    mutated::fuzz("messages", MESSAGES, |text| {
        let _ = serde_json::from_str::<Hello>(text);
        match serde_json::from_str::<UiRequest>(text) {
            Ok(UiRequest::OpenSocket(socket)) => drop(socket.check()),
            Ok(UiRequest::Command { line }) => drop(parse_line(&line)),
            _ => {}
        }
    });
}

#[test]
fn mutated_texts_of_the_shell() {
    mutated::fuzz("lines", LINES, |text| drop(parse_line(text)));
}

#[test]
fn mutated_texts_of_settings() {
    mutated::fuzz("settings", SETTINGS, |text| {
        let _ = (parse_groups(text), parse_profiles(text), parse_memory_list(text));
        let _ = (text.parse::<Percentage>(), text.parse::<Memory>());
        let _ = text.parse::<Address>();
    });
}

/// A user has a say in some of them: names of groups, maps of users.
#[test]
fn mutated_texts_of_the_kernel() {
    mutated::fuzz("origins", KERNELS, |text| {
        if let Some(group) = ControlGroup::parse(text) {
            let bounding = group.bounding(&[0], |at: &Path| Some(at.as_os_str().len() as u32 % 2));
            assert!(group.path.starts_with(bounding), "{bounding} is none of {}", group.path);
        }
        let _ = is_in_nested_pid_namespace(text);
        let _ = (is_same_uid_map(text, KERNELS[4]), can_tell_user(text, 1000));
    });
}
