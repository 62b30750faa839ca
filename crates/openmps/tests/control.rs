//! The executable as `nvidia-cuda-mps-control` and as `openmps control`: options, exit codes, where
//! words go.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A directory with the executable under both names, and room for a daemon.
struct Place {
    directory: tempfile::TempDir,
}

/// What a process came to.
#[derive(Debug, PartialEq)]
struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_openmps"), directory.path().join("nvidia-cuda-mps-control"))
            .unwrap();
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configured(&self, mut command: Command) -> Command {
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.path("log"))
            .env_remove("OPENMPS_LIB_DIR")
            // Of the test runner's making.
            .env_remove("LD_LIBRARY_PATH")
            // Any library will do for a daemon that starts no server.
            .env("OPENMPS_NATIVE_DRIVER", env!("CARGO_BIN_EXE_openmps"));
        command
    }

    fn alias(&self) -> Command {
        self.configured(Command::new(self.path("nvidia-cuda-mps-control")))
    }

    fn openmps(&self) -> Command {
        self.configured(Command::new(env!("CARGO_BIN_EXE_openmps")))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log/control.log")).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Tests that fail leave no daemon behind.
        let _ = self.alias().args(["quit", "-t", "0"]).output();
    }
}

fn said(output: Output) -> Said {
    Said {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(command: &mut Command) -> Said {
    said(command.stdin(Stdio::null()).output().unwrap())
}

fn run_with_input(command: &mut Command, input: &str) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    said(child.wait_with_output().unwrap())
}

#[test]
fn without_a_daemon_the_front_end_says_so_and_fails() {
    let place = Place::new();
    let said = run(place.alias().arg("get_server_list"));
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(said.stderr.starts_with("Cannot find MPS control daemon process"), "{said:?}");
}

#[test]
fn a_daemon_in_the_background_serves_scripts_and_goes() {
    let place = Place::new();
    assert_eq!(
        run(place.alias().arg("-d")),
        Said { code: 0, stdout: String::new(), stderr: String::new() }
    );
    let pid = std::fs::read_to_string(place.path("pipe/nvidia-cuda-mps-control.pid")).unwrap();
    let command_line = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap();
    assert!(command_line.starts_with(b"nvidia-cuda-mps-control"), "scripts look for it in ps");

    let second = run(place.alias().arg("-d"));
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains("An instance of this daemon is already running"), "{second:?}");

    // As the device plugin of Kubernetes sends them: no newline at the end.
    for (command, printed) in [
        ("set_default_device_pinned_mem_limit 0 8192M", ""),
        ("set_default_active_thread_percentage 25", "25.0\n"),
        ("get_default_active_thread_percentage", "25.0\n"),
    ] {
        let said = run_with_input(&mut place.alias(), command);
        assert_eq!(said, Said { code: 0, stdout: printed.into(), stderr: String::new() });
    }
    let several = "get_default_device_pinned_mem_limit 0\nfoo\nget_default_client_priority\n";
    let said = run_with_input(&mut place.alias(), several);
    assert_eq!((said.code, said.stdout.as_str()), (0, "8G\nUnknown command \"foo\"\n0\n"));
    assert!(place.log().contains("Cmd:get_default_client_priority"));

    assert_eq!(run_with_input(&mut place.alias(), "quit").code, 0);
    assert!(
        std::fs::read_dir(place.path("pipe")).unwrap().next().is_none(),
        "nothing is left behind"
    );
    assert!(place.log().ends_with("Exit with status 0\n"));
}

#[test]
fn the_alias_exits_as_the_original_and_openmps_control_honestly() {
    let place = Place::new();
    run(place.alias().arg("-d"));
    for bad in
        [vec!["get_server_status", "1"], vec!["set_default_device_pinned_mem_limit", "0", "3X"]]
    {
        let alias = run(place.alias().args(&bad));
        let honest = run(place.openmps().arg("control").args(&bad));
        assert_eq!((alias.code, honest.code), (0, 1), "{bad:?}");
        assert_eq!(alias.stdout, honest.stdout);
        assert_ne!(honest.stderr, "");
    }
    assert_eq!(run(place.openmps().args(["control", "get_server_list"])).code, 0);
    let unknown = run(place.openmps().args(["control", "-z"]));
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("-z"));
}

#[test]
fn directories_that_cannot_be_used_are_named() {
    let place = Place::new();
    for option in ["-d", "-f"] {
        let said = run(place.alias().arg(option).env("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/mps"));
        assert_eq!(said.code, 1);
        assert!(
            said.stderr.contains("Cannot access CUDA_MPS_PIPE_DIRECTORY=/dev/null/mps"),
            "{said:?}"
        );
    }
    let said = run(place.alias().arg("-d").env("CUDA_MPS_LOG_DIRECTORY", "/dev/null/log"));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains("Failed writing log files"), "{said:?}");
}

#[test]
fn bad_limits_in_the_environment_are_reported_and_ignored() {
    let place = Place::new();
    let mut start = place.alias();
    start.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "500").env("CUDA_MPS_DEVICE_MEM_LIMIT", "0=1G");
    let said = run(start.arg("-d"));
    assert_eq!(said.code, 0);
    assert!(
        said.stderr.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]")
    );
    assert_eq!(run(place.alias().arg("get_default_active_thread_percentage")).stdout, "100.0\n");
    assert_eq!(
        run(place.alias().args(["get_default_device_pinned_mem_limit", "0"])).stdout,
        "1G\n"
    );
}

#[test]
fn defaults_that_are_set_before_the_start_are_the_next_daemons() {
    let place = Place::new();
    // As the guide has it: the limit first, then the daemon.
    let said = run(place.alias().args(["set_default_device_pinned_mem_limit", "0", "3G"]));
    assert_eq!((said.code, said.stdout.as_str()), (0, ""));
    assert!(said.stderr.contains("no daemon runs"), "{said:?}");
    let said = run(place.openmps().args(["control", "set_default_active_thread_percentage", "30"]));
    assert_eq!((said.code, said.stdout.as_str()), (0, "30.0\n"));
    let wrong = run(place.alias().args(["set_default_device_pinned_mem_limit", "0", "3X"]));
    assert_eq!((wrong.code, wrong.stdout.as_str()), (1, ""));
    assert!(wrong.stderr.contains("3X"), "{wrong:?}");
    assert_eq!(run(place.alias().arg("-d")).code, 0);
    let limit = || run(place.alias().args(["get_default_device_pinned_mem_limit", "0"])).stdout;
    assert_eq!(limit(), "3G\n");
    assert_eq!(run(place.alias().arg("get_default_active_thread_percentage")).stdout, "30.0\n");
    // Once only: what was set is lost with the daemon.
    assert_eq!(run(place.alias().arg("quit")).code, 0);
    assert_eq!(run(place.alias().arg("-d")).code, 0);
    assert_eq!(limit(), "");
}

#[test]
fn in_the_foreground_it_logs_to_standard_output_tells_its_manager_and_ends_on_a_signal() {
    let place = Place::new();
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut daemon = place.alias();
    daemon.arg("--forground").env("NOTIFY_SOCKET", place.path("notify"));
    let daemon = daemon.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut state = [0; 64];
    // With a time limit a wait is not taken up again by itself.
    let count = loop {
        match manager.recv(&mut state) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received.unwrap(),
        }
    };
    assert_eq!(&state[..count], b"READY=1");
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let said = said(daemon.wait_with_output().unwrap());
    assert_eq!(said.code, 0);
    assert_eq!(said.stdout, place.log());
    assert!(said.stdout.contains("Starting control daemon using socket"));
}

#[test]
fn what_runs_is_shown_to_people_and_to_programs() {
    let place = Place::new();
    assert_eq!(run(place.openmps().arg("ps")).code, 1);
    run(place.alias().arg("-d"));
    assert!(run(place.openmps().arg("ps")).stdout.starts_with("PID"));
    let libraries = library_directory(&place);
    for view in ["ps", "status", "top", "config", "doctor", "env"] {
        let mut command = place.openmps();
        command.env("OPENMPS_LIB_DIR", &libraries).args([view, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
        assert_eq!(json["schema"], 1, "{view}");
    }
    let logs = run(place.openmps().args(["logs", "--json", "control"])).stdout;
    let first: serde_json::Value = serde_json::from_str(logs.lines().next().unwrap()).unwrap();
    assert_eq!((&first["schema"], &first["log"]), (&1.into(), &"control".into()), "{logs}");
    assert!(first["text"].as_str().unwrap().starts_with("Starting control daemon"), "{logs}");
}

#[test]
fn documents_come_from_the_definitions() {
    let place = Place::new();
    let page = run(place.openmps().arg("man"));
    assert!(
        page.code == 0
            && page.stdout.contains(".TH openmps")
            && page.stdout.contains("OPENMPS_LIB_DIR")
            && page.stdout.contains("EXIT STATUS")
    );
    assert_eq!(run(place.openmps().arg("--no-such-option")).code, 2);
    assert_eq!(run(place.openmps().args(["config", "--check", "/nowhere"])).code, 1);
    for shell in ["bash", "zsh", "fish"] {
        let completions = run(place.openmps().args(["completions", shell]));
        assert!(completions.code == 0 && completions.stdout.contains("openmps"), "{shell}");
    }
}

#[test]
fn mistakes_are_named_and_start_nothing() {
    let place = Place::new();
    let libraries = library_directory(&place);
    let openmps =
        |words: &[&str]| run(place.openmps().env("OPENMPS_LIB_DIR", &libraries).args(words));
    for words in [
        ["run", "--softcdua", "true"].as_slice(),
        &["run", "--softcdua", "--", "true"],
        &["trace", "--softcdua", "--", "true"],
    ] {
        let said = openmps(words);
        assert_eq!(said.code, 2, "{}", said.stderr);
        assert!(said.stderr.contains("'--softcuda'"), "a suggestion: {}", said.stderr);
    }
    let said = openmps(&["rnu", "true"]);
    assert!(said.code == 2 && said.stderr.contains("'run'"), "{}", said.stderr);
    assert_eq!(openmps(&["run", "--softcuda", "no-such-program"]).code, 127);
    assert_eq!(openmps(&["trace", "--softcuda", "no-such-program"]).code, 127);
    assert_eq!(openmps(&["run", "--softcuda", "/dev/null"]).code, 126);
    assert_ne!(run(place.alias().arg("get_server_list")).code, 0, "no daemon runs");
}

#[test]
fn help_and_version_are_commands_too() {
    let place = Place::new();
    let openmps = |words: &[&str]| run(place.openmps().args(words));
    let help = openmps(&["help"]);
    assert!(help.code == 0 && help.stdout.contains("Usage: openmps"), "{}", help.stdout);
    let of_run = openmps(&["help", "run"]);
    assert!(of_run.code == 0 && of_run.stdout.contains("--sm-percent"), "{}", of_run.stdout);
    assert_eq!(openmps(&["version"]).stdout, openmps(&["--version"]).stdout);
}

#[test]
fn a_reader_that_leaves_ends_a_command_quietly() {
    let place = Place::new();
    let libraries = library_directory(&place);
    for words in ["doctor", "man", "config", "--help", "completions bash", "env", "status", "help"]
    {
        let openmps = env!("CARGO_BIN_EXE_openmps");
        // The reader is gone before anything is written.
        let script = format!("( sleep 0.2; {openmps} {words} ) | true");
        let mut shell = place.configured(Command::new("sh"));
        let said = run(shell.arg("-c").arg(script).env("OPENMPS_LIB_DIR", &libraries));
        assert!(!said.stderr.contains("panicked"), "{words}: {}", said.stderr);
    }
}

/// A library directory in which nothing can be loaded, for programs that do not try.
fn library_directory(place: &Place) -> PathBuf {
    let directory = place.path("lib");
    std::fs::create_dir_all(&directory).unwrap();
    for name in ["libcuda.so.1", "libsoftcuda.so"] {
        std::fs::write(directory.join(name), "").unwrap();
    }
    directory
}

#[test]
fn run_starts_a_daemon_and_returns_the_programs_status() {
    let place = Place::new();
    let libraries = library_directory(&place);
    let run_program = |words: &[&str]| {
        run(place
            .openmps()
            .env("OPENMPS_LIB_DIR", &libraries)
            .args(["run", "--softcuda", "--"])
            .args(words))
    };
    let shown = run_program(&["sh", "-c", "echo $LD_LIBRARY_PATH $OPENMPS_NATIVE_DRIVER; exit 7"]);
    let expected = format!("{0} {0}/libsoftcuda.so\n", libraries.display());
    assert_eq!((shown.code, shown.stdout), (7, expected));
    assert_eq!(run(place.alias().arg("get_server_list")).code, 0, "a daemon runs now");
    assert_eq!(run_program(&["no-such-program"]).code, 127);
    assert_eq!(run_program(&["/dev/null"]).code, 126);
    assert_eq!(run_program(&["sh", "-c", "echo --softcuda"]).stdout, "--softcuda\n");
}

#[test]
fn exports_are_what_run_sets() {
    let place = Place::new();
    let libraries = library_directory(&place);
    let exports = run(place.openmps().env("OPENMPS_LIB_DIR", &libraries).arg("env")).stdout;
    let mut shell = Command::new("sh");
    let script = format!("{exports}\nprintf %s \"$LD_LIBRARY_PATH|$CUDA_MPS_PIPE_DIRECTORY\"");
    let shown = run(shell.arg("-c").arg(script).env_remove("LD_LIBRARY_PATH")).stdout;
    assert_eq!(shown, format!("{}|{}", libraries.display(), place.path("pipe").display()));
}
