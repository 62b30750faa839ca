//! `openmps doctor` finds each cause of failure that users meet: one arrangement for each, made for
//! real.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What must come about comes about within this time, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// An installation that any user can reach, and room for a daemon.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Self { directory };
        open_to_all(place.directory.path());
        for inside in ["lib", "pipe", "log"] {
            fs::create_dir(place.path(inside)).unwrap();
        }
        for library in ["libcuda.so.1", "libsoftcuda.so"] {
            fs::write(place.path("lib").join(library), "").unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// With variables that a test changes as it needs.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.path("log"))
            .env("OPENMPS_LIB_DIR", self.path("lib"))
            .env("OPENMPS_NATIVE_DRIVER", self.path("lib/libsoftcuda.so"))
            .env("OPENMPS_CONFIG", "")
            .env_remove("LD_LIBRARY_PATH");
        command
    }

    fn doctor(&self) -> Command {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_openmps")));
        command.args(["doctor", "--json"]);
        command
    }

    /// The executable where other users can run it.
    fn shared_executable(&self) -> PathBuf {
        let executable = self.path("openmps");
        // By a process of its own: a file that this one writes is busy in whatever another test
        // starts meanwhile.
        let mut copy = Command::new("cp");
        let copied = copy.arg(env!("CARGO_BIN_EXE_openmps")).arg(&executable).status().unwrap();
        assert!(copied.success());
        executable
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A daemon in the foreground, ended with the test.
struct Daemon(Child);

impl Daemon {
    fn start(mut command: Command, socket_directory: &Path) -> Self {
        let daemon = command.args(["control", "-f"]);
        let daemon = daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Self(daemon.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !socket_directory.join("nvidia-cuda-mps-control.pid").exists()
            || !socket_directory.join(link::wire::DAEMON_SOCKET).exists()
        {
            assert!(Instant::now() < deadline, "the daemon does not start");
            std::thread::yield_now();
        }
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All findings on a subject: (verdict, text and advice).
fn findings(doctor: &mut Command, subject: &str) -> Vec<(String, String)> {
    let output = doctor.stdin(Stdio::null()).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(document["schema"], 1);
    let all = document["findings"].as_array().unwrap();
    let problem = all.iter().any(|finding| finding["verdict"] == "problem");
    assert_eq!(output.status.code(), Some(i32::from(problem)), "{document}");
    let about = all.iter().filter(|finding| finding["subject"] == subject);
    about
        .map(|finding| {
            let word = |field: &str| finding[field].as_str().unwrap().to_owned();
            (word("verdict"), format!("{} -> {}", word("text"), word("advice")))
        })
        .collect()
}

/// Asserts that one finding has this verdict and all these words.
#[track_caller]
fn found(doctor: &mut Command, subject: &str, verdict: &str, words: &[&str]) {
    let found = findings(doctor, subject);
    let fits = |(is, text): &(String, String)| {
        is == verdict && words.iter().all(|word| text.contains(word))
    };
    assert!(found.iter().any(fits), "{subject}: no {verdict} with {words:?} in {found:?}");
}

#[test]
fn a_wrong_libcuda_first_on_the_path() {
    let place = Place::new();
    fs::create_dir(place.path("other")).unwrap();
    fs::write(place.path("other/libcuda.so.1"), "").unwrap();
    let (other, ours) = (place.path("other"), place.path("lib"));
    let path = |directories: &[&PathBuf]| std::env::join_paths(directories).unwrap();
    let with = |value| {
        let mut doctor = place.doctor();
        doctor.env("LD_LIBRARY_PATH", value);
        doctor
    };
    let name = other.join("libcuda.so.1").display().to_string();
    let subject = "LD_LIBRARY_PATH";
    found(&mut with(path(&[&other, &ours])), subject, "problem", &[&name, "openmps run"]);
    found(&mut with(path(&[&other])), subject, "note", &[&name]);
    found(&mut with(path(&[&ours, &other])), subject, "ok", &[]);
    found(&mut place.doctor(), subject, "note", &["natively"]);
}

#[test]
fn libraries_and_drivers_that_are_not_there() {
    let place = Place::new();
    found(
        place.doctor().env("OPENMPS_LIB_DIR", "/nowhere"),
        "libraries",
        "problem",
        &["/nowhere", "OPENMPS_LIB_DIR"],
    );
    found(
        place.doctor().env("OPENMPS_NATIVE_DRIVER", "/nowhere/libcuda.so.1"),
        "driver",
        "problem",
        &["/nowhere/libcuda.so.1", "OPENMPS_NATIVE_DRIVER"],
    );
    // An empty file is no library.
    found(&mut place.doctor(), "driver", "problem", &["libsoftcuda.so", "does not work"]);
}

#[test]
fn what_was_not_tested_says_so() {
    let place = Place::new();
    let tested = |subject: &str| {
        let finding = findings(&mut place.doctor(), subject).remove(0);
        // Which of them this machine has is not for a test to say.
        let says_so = finding.1.contains("not tested");
        assert_eq!(finding.0 == "note", says_so, "{finding:?}");
        finding.1
    };
    assert!(tested("kernel").starts_with("Linux "));
    assert!(tested("C library").starts_with("glibc 2."));
    let toolkit = place.path("toolkit");
    fs::create_dir(&toolkit).unwrap();
    for (file, verdict, words) in [
        ("libcudart.so.12.9.79", "ok", "CUDA runtime 12.9 is in "),
        ("libcudart.so.12.4.127", "note", "CUDA runtime 12.4 is in "),
    ] {
        fs::write(toolkit.join(file), "").unwrap();
        let mut doctor = place.doctor();
        doctor.env("LD_LIBRARY_PATH", &toolkit);
        let words = format!("{words}{}", toolkit.display());
        found(&mut doctor, "CUDA runtime", verdict, &[&words]);
    }
}

#[test]
fn a_wrong_configuration_file() {
    let place = Place::new();
    fs::write(place.path("config.toml"), "[limits]\nclient_priorities = 1\n").unwrap();
    let mut doctor = place.doctor();
    doctor.env("OPENMPS_CONFIG", place.path("config.toml"));
    found(&mut doctor, "configuration", "problem", &["client_priorities", "--check"]);
}

#[test]
fn a_low_limit_of_descriptors() {
    let place = Place::new();
    let mut shell = place.command(Path::new("sh"));
    let script = format!("ulimit -n 200 && exec '{}' doctor --json", env!("CARGO_BIN_EXE_openmps"));
    found(shell.args(["-c", &script]), "open files", "problem", &["200", "ulimit -Hn"]);
    assert!(!findings(&mut place.doctor(), "/dev/shm").is_empty());
    found(&mut place.doctor(), "shared memory", "ok", &[]);
}

#[test]
fn pipe_directories_that_cannot_be_used() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let long = place.path(&"x".repeat(100));
    fs::create_dir(&long).unwrap();
    for (directory, words) in [
        (place.path("file"), "no directory"),
        (place.path("file/below"), "Not a directory"),
        (long, "too long"),
    ] {
        let mut doctor = place.doctor();
        doctor.env("CUDA_MPS_PIPE_DIRECTORY", directory);
        found(&mut doctor, "pipe directory", "problem", &[words]);
    }
    let mut doctor = place.doctor();
    doctor.env("CUDA_MPS_LOG_DIRECTORY", "/proc/nowhere/log");
    assert_ne!(findings(&mut doctor, "log directory")[0].0, "ok");
}

#[test]
fn nvidias_daemon_in_the_way() {
    let place = Place::new();
    let _native = UnixListener::bind(place.path("pipe/control")).unwrap();
    found(&mut place.doctor(), "NVIDIA's MPS", "problem", &["NVIDIA's control daemon", "quit"]);
}

#[test]
fn a_daemon_in_another_directory() {
    let place = Place::new();
    found(&mut place.doctor(), "daemon", "note", &["none runs here"]);
    let daemon = place.command(Path::new(env!("CARGO_BIN_EXE_openmps")));
    let _daemon = Daemon::start(daemon, &place.path("pipe"));
    found(&mut place.doctor(), "daemon", "ok", &[]);
    let mut doctor = place.doctor();
    doctor.env("CUDA_MPS_PIPE_DIRECTORY", place.path("elsewhere"));
    let pipe = place.path("pipe").display().to_string();
    found(&mut doctor, "daemon", "note", &["none runs here, but in", &pipe]);
}

#[test]
fn daemons_and_directories_of_other_users() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let place = Place::new();
    let executable = place.shared_executable();
    let own = place.path("own");
    for directory in [&own, &place.path("log")] {
        fs::create_dir_all(directory).unwrap();
        open_to_all(directory);
        std::os::unix::fs::chown(directory, Some(12345), Some(12345)).unwrap();
    }
    let of_user = |uid: u32| {
        let mut command = place.command(&executable);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &own).uid(uid).gid(uid).current_dir("/");
        command
    };
    // Whoever owns the directory could stand in for the daemon: for the owner that is as it should
    // be.
    for stranger in [12346, 0] {
        found(
            of_user(stranger).args(["doctor", "--json"]),
            "pipe directory",
            "problem",
            &["user 12345's to change"],
        );
    }
    found(of_user(12345).args(["doctor", "--json"]), "pipe directory", "ok", &[]);
    let _daemon = Daemon::start(of_user(12345), &own);
    found(of_user(12345).args(["doctor", "--json"]), "daemon", "ok", &[]);
    // Another user is kept out by the socket's permissions; root is not, but is not served either.
    found(
        of_user(12346).args(["doctor", "--json"]),
        "daemon",
        "problem",
        &["CUDA_MPS_PIPE_DIRECTORY", "run as the daemon's user"],
    );
    found(of_user(0).args(["doctor", "--json"]), "daemon", "problem", &["user 12345", "user 0"]);
    // A directory that others may not even enter.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    found(
        of_user(12346).args(["doctor", "--json"]),
        "daemon",
        "problem",
        &["Permission denied", "CUDA_MPS_PIPE_DIRECTORY"],
    );
}
