//! A real Prometheus for one test: Debian's, unpacked by `cargo xtask programs`, which scrapes one
//! daemon and knows the alerts of `deploy`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{Finished, Running};
use crate::wait::{self, PATIENCE};
use crate::{Installation, process};

/// Between two scrapes: a rate needs two.
const SCRAPE_INTERVAL: &str = "1s";

/// Its programs.
#[derive(Debug)]
pub struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// Looks for them.
    ///
    /// # Errors
    /// They are not there.
    pub fn find(installation: &Installation) -> Result<Self> {
        let directory = installation.debian("prometheus").join("usr/bin");
        for program in ["prometheus", "promtool"] {
            let path = directory.join(program);
            ensure!(path.exists(), "no {}: `cargo xtask programs` fetches it", path.display());
        }
        Ok(Self { directory })
    }

    /// Runs `promtool` to its end, with a file on its standard input.
    ///
    /// # Errors
    /// When it cannot be run, or does not end.
    pub fn promtool(&self, arguments: &[&str], input: Option<&Path>) -> Result<Finished> {
        let program = self.directory.join("promtool");
        let mut command = Command::new("/bin/sh");
        // The shell gives it the file: no pipe can fill up.
        let input = input.unwrap_or(Path::new("/dev/null"));
        command.args(["-c", "input=$1; shift; exec \"$@\" < \"$input\"", "sh"]).arg(input);
        process::run(command.arg(program).args(arguments), PATIENCE)
    }
}

/// A Prometheus that runs.
#[derive(Debug)]
pub struct Prometheus {
    process: Running,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with files of its own in `directory`; it listens at `address` and scrapes
    /// `target`, and reads the alerts of `rules`.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(
        tools: &Tools,
        directory: &Path,
        address: SocketAddr,
        target: SocketAddr,
        rules: &Path,
    ) -> Result<Self> {
        let configuration = directory.join("prometheus.yml");
        let rules = rules.canonicalize().with_context(|| rules.display().to_string())?;
        let text = format!(
            "global: {{scrape_interval: {SCRAPE_INTERVAL}, scrape_timeout: {SCRAPE_INTERVAL}, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: openmps, static_configs: [{{targets: ['{target}']}}]}}]\n",
            rules.display()
        );
        fs::write(&configuration, text)?;
        let mut command = Command::new(tools.directory.join("prometheus"));
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("prometheus").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn");
        let prometheus = Self { process: Running::start(&mut command)?, address };
        let is_ready = || {
            let answer = get(connect(address).ok()?, "/-/ready", "*/*").ok()?;
            answer.is_ok().then_some(())
        };
        if let Err(error) = wait::until("Prometheus is ready", PATIENCE, || is_ready().is_some()) {
            let Self { mut process, .. } = prometheus;
            process.kill()?;
            let finished = process.finish(PATIENCE)?;
            bail!("{error}\n{}{}", finished.stdout, finished.stderr);
        }
        Ok(prometheus)
    }

    /// What a path of its API answers, without the envelope.
    ///
    /// # Errors
    /// When it answers with an error; the message has it.
    pub fn api(&self, path: &str) -> Result<Value> {
        let answer = get(connect(self.address)?, path, "application/json")?;
        let mut whole: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("{path}: {}", answer.head))?;
        ensure!(whole["status"] == "success", "{path}: {whole}");
        Ok(whole["data"].take())
    }

    /// The values of an expression now, of all its series.
    ///
    /// # Errors
    /// When the expression is none.
    pub fn query(&self, expression: &str) -> Result<Vec<f64>> {
        let path = format!("/api/v1/query?query={}", percent_encoded(expression));
        let data = self.api(&path).context(expression.to_owned())?;
        let series = data["result"].as_array().context("a result that is no list")?;
        let value = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse().ok());
        let values: Option<Vec<f64>> = series.iter().map(value).collect();
        values.with_context(|| format!("{expression}: {data}"))
    }
}

/// Connects, for answers that come in time.
///
/// # Errors
/// When nobody listens there.
pub fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// An answer of HTTP.
#[derive(Debug)]
pub struct Answer {
    /// The status line and the headers.
    pub head: String,
    /// What follows.
    pub body: String,
}

impl Answer {
    /// Whether its status is 200.
    pub fn is_ok(&self) -> bool {
        self.head.starts_with("HTTP/1.1 200") || self.head.starts_with("HTTP/1.0 200")
    }
}

/// Asks for a path in a format.
///
/// # Errors
/// When no whole answer comes in time.
pub fn get(mut stream: impl Read + Write, path: &str, accept: &str) -> Result<Answer> {
    // Of version 1.0, an answer's end is the connection's, and it comes in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    Ok(Answer { head: head.to_owned(), body: body.to_owned() })
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
