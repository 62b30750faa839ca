//! The page of `openmps top --web`: who gets it, what it shows, and what a browser makes of it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use openmps_tests::process::Running;
use openmps_tests::prometheus::{Answer, connect};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox, process, schema};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

const OTHER_USER: u32 = 12346;
/// Connections that the page looks after at a time.
const MAX_CONNECTIONS: usize = 64;

/// `openmps top --web` that runs.
struct Web {
    child: Child,
    said: PathBuf,
}

impl Web {
    fn start(sandbox: &Sandbox, place: &[&str]) -> Result<Self> {
        let said = sandbox.directory().join("web.txt");
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.args(["top", "--interval", "0.2", "--web"]).args(place);
        let output = fs::File::create(&said)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let web = Self { child: command.spawn()?, said };
        wait::until("it says where the page is", PATIENCE, || web.said().contains("Ctrl-C"))
            .with_context(|| web.said())?;
        Ok(web)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// The page's address, and its parts: host and port, and the path with the token.
    fn url(&self) -> Result<(String, SocketAddr, String)> {
        let said = self.said();
        let url = said.lines().next().context("it says nothing")?;
        let (at, path) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .with_context(|| said.clone())?;
        ensure!(path.len() == 33, "a token of 128 bits and a slash: {path}");
        Ok((url.to_owned(), at.parse()?, format!("/{path}")))
    }

    fn end(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        wait::until("it ends", PATIENCE, || self.child.try_wait().is_ok_and(|it| it.is_some()))?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}: {}", self.said());
        Ok(())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes back for these bytes.
fn said_to(mut stream: impl Read + Write, request: &str) -> Result<Answer> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    Ok(Answer { head: head.to_owned(), body: body.to_owned() })
}

fn ask(at: SocketAddr, path: &str) -> Result<Answer> {
    said_to(connect(at)?, &format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
}

fn state(at: SocketAddr, path: &str) -> Result<Value> {
    let answer = ask(at, &format!("{path}state"))?;
    ensure!(answer.is_ok(), "{}", answer.head);
    Ok(serde_json::from_str(&answer.body)?)
}

fn status(answer: &Answer) -> &str {
    answer.head.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn the_page_shows_what_the_terminal_shows_until_the_daemon_comes_back() -> Result<()> {
    let known: Value = serde_json::from_str(include_str!("../../docs/schema.json"))?;
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut faulty = daemon.puppet()?;
    faulty.must("open")?;
    ensure!(faulty.ask("fault")?.starts_with("error"));
    faulty.kill()?;
    let mut client = daemon.puppet_with(&[("OPENMPS_GROUP", "crew")])?;
    client.must("open")?;
    client.must("allocate 1048576")?;
    client.must("churn")?;
    let web = Web::start(daemon.sandbox(), &[])?;
    let (_, at, path) = web.url()?;
    let mut shown = Value::Null;
    wait::until("the client and its kernel are shown", PATIENCE, || {
        shown = state(at, &path).unwrap_or_default();
        let client = &shown["clients"][0];
        client["kernel"] == "step" && client["minute"][59].is_number()
    })
    .with_context(|| shown.to_string())?;
    schema::check(&known, "web", &shown).with_context(|| shown.to_string())?;
    let of = &shown["clients"][0];
    ensure!(of["client"]["pid"] == client.pid() && of["client"]["group"] == "crew", "{of}");
    ensure!(of["client"]["granted_bytes"].as_u64() >= Some(1 << 20), "{of}");
    ensure!(shown["faults"][0]["line"].as_str().is_some_and(|line| line.contains("fault 1")));
    ensure!(shown["trouble"].is_null() && shown["gpus"][0]["minute"][59].is_number(), "{shown}");
    client.kill()?;
    wait::until("nobody is shown", PATIENCE, || {
        state(at, &path).is_ok_and(|shown| shown["clients"] == Value::Array(Vec::new()))
    })?;
    daemon.quit(PATIENCE)?;
    wait::until("the page says that the daemon is gone", PATIENCE, || {
        let shown = state(at, &path).unwrap_or_default();
        shown["trouble"].as_str().is_some_and(|why| why.contains("no daemon answers"))
    })?;
    daemon.start_again()?;
    wait::until("the next daemon is shown", PATIENCE, || {
        state(at, &path)
            .is_ok_and(|shown| shown["daemon_pid"] == daemon.pid() && shown["trouble"].is_null())
    })?;
    web.end()
}

#[test]
fn nobody_else_gets_the_page() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let web = Web::start(sandbox, &[])?;
    let (_, at, path) = web.url()?;
    ensure!(at.ip().is_loopback(), "{at}");
    let page = ask(at, &path)?;
    ensure!(page.is_ok(), "{}", page.head);
    for header in [
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
    ] {
        ensure!(page.head.contains(header), "{}", page.head);
    }
    let (host, wanted) = (format!("Host: {at}\r\n"), format!("{path}state"));
    let raw = |request: &str| said_to(connect(at)?, request);
    for (request, code) in [
        (format!("GET {wanted} HTTP/1.1\r\n{host}\r\n"), "200"),
        (format!("GET {wanted} HTTP/1.1\r\n{host}Origin: http://{at}\r\n\r\n"), "200"),
        (format!("GET /state HTTP/1.1\r\n{host}\r\n"), "403"),
        (format!("GET / HTTP/1.1\r\n{host}\r\n"), "403"),
        (format!("GET {wanted} HTTP/1.1\r\n\r\n"), "403"),
        (format!("GET {wanted} HTTP/1.1\r\nHost: rebound.example:{}\r\n\r\n", at.port()), "403"),
        (format!("GET {wanted} HTTP/1.1\r\n{host}Origin: http://evil.example\r\n\r\n"), "403"),
        (format!("GET {wanted} HTTP/1.1\r\n{host}Origin: null\r\n\r\n"), "403"),
        (format!("POST {wanted} HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n"), "405"),
        (format!("DELETE {path} HTTP/1.1\r\n{host}\r\n"), "405"),
        (format!("GET {path}other HTTP/1.1\r\n{host}\r\n"), "404"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = raw(&request)?;
        ensure!(status(&answer) == code, "{request}{}", answer.head);
        ensure!(code == "200" || !answer.body.contains("daemon_pid"), "{}", answer.body);
    }
    // Longer than any request is: answered before its end, and not kept.
    let long = raw(&format!("GET {wanted} HTTP/1.1\r\n{host}X: {}", "x".repeat(17 << 10)));
    ensure!(long.is_err() || long.is_ok_and(|answer| !answer.head.is_empty()));
    // Connections that say nothing keep nobody out.
    let idle: Result<Vec<TcpStream>> = (0..2 * MAX_CONNECTIONS).map(|_| connect(at)).collect();
    ensure!(state(at, &path)?["daemon_pid"] == daemon.pid());
    drop(idle?);
    if geteuid().is_root() {
        let another = |path: &str| -> Result<String> {
            let script = "exec 3<>/dev/tcp/127.0.0.1/$1 && printf \"$2\" >&3 && cat <&3";
            let request = format!("GET {path} HTTP/1.1\\r\\n{}\\r\\n\\r\\n", host.trim_end());
            let mut command = sandbox.command_as(OTHER_USER, "/bin/bash", Runtime::Softcuda);
            command.args(["-c", script, "bash", &at.port().to_string(), &request]);
            Ok(process::run(&mut command, PATIENCE)?.success()?.to_owned())
        };
        for path in ["/", "/state", "/00000000000000000000000000000000/state"] {
            let answer = another(path)?;
            ensure!(answer.starts_with("HTTP/1.1 403 "), "another user: {answer}");
        }
        // It is the token that opens.
        ensure!(another(&wanted)?.starts_with("HTTP/1.1 200 "));
    }
    web.end()
}

#[test]
fn a_socket_is_for_its_user_alone() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let socket = sandbox.directory().join("page");
    let place = format!("unix:{}", socket.display());
    let web = Web::start(sandbox, &[&place])?;
    let mode = fs::metadata(&socket)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "its mode is {mode:o}");
    let ask = |host: &str| {
        let stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        said_to(stream, &format!("GET /state HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    ensure!(ask("localhost:8080")?.body.contains(&format!("\"daemon_pid\":{}", daemon.pid())));
    ensure!(status(&ask("evil.example")?) == "403");
    web.end()?;
    ensure!(!socket.exists(), "it is left behind");
    let refused = |place: &str| -> Result<()> {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let finished = process::run(command.args(["top", "--web", place]), PATIENCE)?;
        let told = finished.status.code() == Some(2) && finished.stderr.contains("127.0.0.1");
        ensure!(told, "{place}: {finished:?}");
        Ok(())
    };
    ["0.0.0.0:0", "[::]:0", "9400"].into_iter().try_for_each(refused)
}

/// An installed browser, or the one that `cargo xtask test --full` unpacks.
fn chromium(sandbox: &Sandbox) -> Result<Command> {
    let root = sandbox.installation.debian("chromium");
    let own = root.join("usr/lib/chromium/chromium");
    if own.exists() {
        let mut command = Command::new(own);
        command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
        return Ok(command);
    }
    let installed = Path::new("/usr/bin/chromium");
    if installed.exists() {
        return Ok(Command::new(installed));
    }
    bail!("no {}: `cargo xtask test --full` fetches it", own.display())
}

/// The page as it is after some seconds of its own time, its script having run.
fn drawn(sandbox: &Sandbox, url: &str, size: &str) -> Result<String> {
    let mut command = chromium(sandbox)?;
    let profile = sandbox.directory().join("profile");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--disable-dev-shm-usage",
    ]);
    command.args(["--virtual-time-budget=3000", &format!("--window-size={size}")]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    // What the policy stops or the script does wrong is said there.
    command.args(["--enable-logging=stderr", "--v=0", url]);
    let finished = process::run(&mut command, PATIENCE)?;
    let complaint = finished.stderr.lines().find(|line| line.contains(":CONSOLE"));
    ensure!(complaint.is_none(), "{complaint:?}");
    // Less the script, which has all words in it.
    let (_, shown) = finished.success()?.split_once("</style>").context("no style")?;
    let (shown, _) = shown.split_once("<script").context("no script")?;
    Ok(shown.to_owned())
}

/// Starts a browser of some hundred megabytes.
#[test]
#[ignore = "needs Chromium: a part of `cargo xtask test --full`"]
fn a_browser_draws_the_page() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let web = Web::start(daemon.sandbox(), &[])?;
    let (url, at, path) = web.url()?;
    let look = |daemon: &Daemon, size: &str| drawn(daemon.sandbox(), &url, size);
    let has = |page: &str, words: &str| -> Result<()> {
        ensure!(page.contains(words), "`{words}` is not in {page}");
        Ok(())
    };
    let nobody = look(&daemon, "1280,900")?;
    has(&nobody, "<p id=\"nobody\" class=\"soft\">Nobody is there")?;
    let calm = "role=\"status\" hidden=\"\"";
    has(&nobody, calm)?;
    has(&nobody, "<p id=\"no-gpus\" class=\"soft\">No server runs")?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("driver-api", "contenders");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let never = sandbox.directory().join("never");
    command.args(["busy", "20000", "4", "0", "1", "4", "until"]).arg(never);
    let mut client = Running::start(command.env("OPENMPS_GROUP", "crew-one"))?;
    wait::until("its kernel is seen", PATIENCE, || {
        state(at, &path).is_ok_and(|shown| shown["clients"][0]["kernel"] == "work")
    })?;
    for size in ["1280,900", "390,844"] {
        let (mut page, mut looked) = (String::new(), Ok(()));
        // Between two kernels there is none.
        wait::until("the page names the kernel that runs", PATIENCE, || {
            looked = look(&daemon, size).map(|drawn| page = drawn);
            looked.is_err() || page.contains("<span>work</span><small>for ")
        })
        .with_context(|| page.clone())?;
        looked?;
        let pid = format!("<span>{}</span>", client.pid());
        for words in
            [&pid, calm, "group crew-one", ">runs<", "GPU 0: ", "<path class=\"curve\" d=\"M"]
        {
            has(&page, words)?;
        }
        ensure!(!page.contains("class=\"soft\">Nobody is there"), "{page}");
    }
    client.kill()?;
    daemon.quit(PATIENCE)?;
    wait::until("the page is told that the daemon is gone", PATIENCE, || {
        state(at, &path).is_ok_and(|shown| shown["trouble"].is_string())
    })?;
    let gone = look(&daemon, "1280,900")?;
    has(&gone, "No daemon answers: ")?;
    has(&gone, "<main id=\"main\" class=\"stale\">")?;
    web.end()
}
