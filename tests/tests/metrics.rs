//! What a scrape says of a client at work: every metric of the list, with labels that join with
//! those of NVIDIA's DCGM exporter; and what a real Prometheus makes of the dashboard and the
//! alerts of `deploy`.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use openmps_tests::prometheus::{Answer, Prometheus, Tools, connect, get};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox, process};
use serde_json::Value;

const TEXT: &str = "text/plain;version=0.0.4";
const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";

fn ask(socket: &Path, path: &str, accept: &str) -> Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    get(stream, path, accept)
}

fn scrape(socket: &Path) -> Result<String> {
    let answer = ask(socket, "/metrics", "*/*")?;
    ensure!(answer.is_ok(), "{}", answer.head);
    Ok(answer.body)
}

/// The value of the sample with this name and all these labels.
fn value(text: &str, name: &str, labels: &[String]) -> Result<f64> {
    let found = text.lines().find(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|label| line.contains(label.as_str()))
    });
    let line = found.with_context(|| format!("no {name} with {labels:?} in\n{text}"))?;
    let value = line.rsplit(' ').next().context("a sample without a value")?;
    value.parse().with_context(|| line.to_owned())
}

#[test]
fn a_client_at_work_is_measured() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let socket = sandbox.log_directory().join("metrics");
    let address = format!("unix:{}", socket.display());
    let daemon = Daemon::start_with(
        sandbox,
        &[("OPENMPS_METRICS", address.as_str()), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")],
    )?;
    ensure!(scrape(&socket)?.contains("openmps_servers 0"));
    let mut client = daemon.puppet_with(&[("OPENMPS_GROUP", "crew")])?;
    client.must("open")?;
    client.must("allocate 1048576")?;
    let uuid = daemon.snapshot()?.devices[0].uuid.clone();
    let device = vec!["gpu=\"0\"".to_owned(), format!("UUID=\"{uuid}\"")];
    let number = daemon.snapshot()?.clients[0].client_id;
    let of_client = [device.clone(), vec![format!("client=\"{number}\"")]].concat();
    let of_group = [device.clone(), vec!["group=\"crew\"".to_owned()]].concat();
    let mut text = String::new();
    // Kernels' times are sampled.
    wait::until("a kernel's time was sampled", PATIENCE, || {
        let scraped = client.must("work 20").and_then(|()| scrape(&socket));
        text = scraped.unwrap_or_default();
        value(&text, "openmps_client_gpu_seconds_total", &of_client).is_ok_and(|time| time > 0.0)
    })
    .with_context(|| text.clone())?;
    for name in [
        "openmps_device_clients",
        "openmps_device_memory_bytes",
        "openmps_device_memory_granted_bytes",
        "openmps_device_multiprocessors",
        "openmps_device_kernels_total",
        "openmps_device_gpu_seconds_total",
        "openmps_device_copied_bytes_total",
        "openmps_device_launch_seconds_count",
    ] {
        ensure!(value(&text, name, &device)? > 0.0, "{name} is 0 in\n{text}");
    }
    for name in [
        "openmps_device_queued_bytes",
        "openmps_device_faults_total",
        "openmps_device_executor_restarts_total",
    ] {
        value(&text, name, &device)?;
    }
    for name in [
        "openmps_client_memory_granted_bytes",
        "openmps_client_kernels_total",
        "openmps_client_copied_bytes_total",
        "openmps_client_multiprocessors",
    ] {
        ensure!(value(&text, name, &of_client)? > 0.0, "{name} is 0 in\n{text}");
    }
    for name in [
        "openmps_group_clients",
        "openmps_group_memory_granted_bytes",
        "openmps_group_kernels_total",
        "openmps_group_gpu_seconds_total",
        "openmps_group_copied_bytes_total",
        "openmps_group_launch_seconds_count",
        "openmps_group_launch_seconds_sum",
    ] {
        ensure!(value(&text, name, &of_group)? > 0.0, "{name} is 0 in\n{text}");
    }
    let process = [format!("client=\"{number}\""), format!("pid=\"{}\"", client.pid())];
    ensure!(value(&text, "openmps_client_info", &process)? == 1.0);
    ensure!(value(&text, "openmps_client_active_thread_percentage", &of_client)? == 25.0);
    ensure!(value(&text, "openmps_client_failed", &of_client)? == 0.0);
    value(&text, "openmps_client_queued_bytes", &of_client)?;
    // Whoever leaves takes its own series along, and leaves the device's and its group's.
    let kernels = value(&text, "openmps_device_kernels_total", &device)?;
    let of_the_group = value(&text, "openmps_group_kernels_total", &of_group)?;
    let pid = client.pid();
    client.dismiss()?;
    daemon.wait_gone(pid)?;
    let after = scrape(&socket)?;
    ensure!(value(&after, "openmps_client_kernels_total", &of_client).is_err(), "{after}");
    ensure!(value(&after, "openmps_device_kernels_total", &device)? >= kernels, "{after}");
    ensure!(value(&after, "openmps_group_kernels_total", &of_group)? >= of_the_group, "{after}");
    ensure!(value(&after, "openmps_group_clients", &of_group)? == 0.0, "{after}");
    Ok(())
}

#[test]
fn a_scraper_gets_the_format_that_it_asks_for_and_the_daemons_health() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let socket = sandbox.log_directory().join("metrics");
    let address = format!("unix:{}", socket.display());
    let _daemon = Daemon::start_with(sandbox, &[("OPENMPS_METRICS", address.as_str())])?;
    let plain = "Content-Type: text/plain; version=0.0.4; charset=utf-8";
    let open = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    for (accept, wanted, end) in
        [("*/*", plain, false), (TEXT, plain, false), (OPEN_METRICS, open, true)]
    {
        let answer = ask(&socket, "/metrics", accept)?;
        ensure!(answer.is_ok() && answer.head.contains(wanted), "{accept}: {}", answer.head);
        ensure!(answer.body.ends_with("# EOF\n") == end, "{accept}: {}", answer.body);
        ensure!(answer.body.contains("\nopenmps_build_info{version="), "{}", answer.body);
    }
    let healthy = ask(&socket, "/healthz", "*/*")?;
    ensure!(healthy.is_ok() && healthy.body == "ok\n", "{healthy:?}");
    let nowhere = ask(&socket, "/health", "*/*")?;
    ensure!(nowhere.head.starts_with("HTTP/1.1 404"), "{nowhere:?}");
    Ok(())
}

fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

/// The expressions of the dashboard's panels and variables, as Grafana asks them where everything
/// is chosen.
fn expressions_of_dashboard() -> Result<Vec<String>> {
    let text = fs::read_to_string(deployed("grafana/openmps.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for panel in list(&dashboard["panels"]) {
        for target in list(&panel["targets"]) {
            found.push(target["expr"].as_str().context("a target without expr")?.to_owned());
        }
    }
    ensure!(found.len() >= 20, "only {} expressions in the panels", found.len());
    for variable in list(&dashboard["templating"]["list"]) {
        if let Some(query) = variable["query"]["query"].as_str() {
            let inner = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
            let (series, label) = inner.and_then(|it| it.rsplit_once(", ")).context("a query")?;
            found.push(format!("count by ({label}) ({series}) > 0"));
        }
    }
    let chosen = |expression: &String| {
        expression
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*")
            .replace("$gpu", ".*")
    };
    let found: Vec<String> = found.iter().map(chosen).collect();
    ensure!(found.iter().all(|expression| !expression.contains('$')), "{found:?}");
    Ok(found)
}

/// The metrics that an expression reads.
fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("openmps_") || *word == "up").collect()
}

#[test]
fn a_real_prometheus_answers_all_of_the_dashboard_and_the_alerts() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let tools = match Tools::find(&sandbox.installation) {
        Ok(tools) => tools,
        Err(error) if env::var_os("CI").is_none_or(|value| value != "true") => {
            // Past the runner, which hides what tests print.
            let _ = writeln!(std::io::stderr(), "metrics: NOT TRIED: Prometheus: {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let rules = deployed("prometheus/openmps.rules.yml");
    for (what, file) in
        [("check", &rules), ("test", &deployed("prometheus/openmps.rules.test.yml"))]
    {
        let file = file.to_str().context("a path that is no text")?;
        tools.promtool(&[what, "rules", file], None)?.success()?;
    }
    // An address that no other test has.
    let [_, second, third, fourth] = std::process::id().to_be_bytes();
    let at = |port| SocketAddr::from((Ipv4Addr::new(127, 64 | second, third, fourth), port));
    let (exporter, prometheus) = (at(9400), at(9090));
    let daemon = Daemon::start_with(sandbox, &[("OPENMPS_METRICS", &exporter.to_string())])?;
    let sandbox = daemon.sandbox();
    let limit = ["limit", "--group", "crew", "--memory", "1G", "--sm-percent", "50"];
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(limit), PATIENCE)?.success()?;
    let mut culprit = daemon.puppet()?;
    culprit.must("open")?;
    culprit.expect("fault", "error 700")?;
    let environment = [("OPENMPS_GROUP", "crew"), ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    let mut client = daemon.puppet_with(&environment)?;
    client.must("open")?;
    client.must("allocate 1048576")?;
    let prometheus = Prometheus::start(&tools, sandbox.directory(), prometheus, exporter, &rules)?;
    let mut missing = expressions_of_dashboard()?;
    wait::until("all of the dashboard has data", PATIENCE, || {
        let works = client.must("work 20").is_ok();
        missing.retain(|expression| match prometheus.query(expression) {
            Ok(values) => values.is_empty() || values.iter().all(|value| value.is_nan()),
            Err(_) => true,
        });
        !works || missing.is_empty()
    })
    .with_context(|| format!("without data: {missing:#?}"))?;
    // It has worked all the time.
    client.must("work 1")?;
    // What alerts watch is there, and none of them is wrong.
    let mut alerts = Vec::new();
    wait::until("all alerts were looked at", PATIENCE, || {
        let Ok(data) = prometheus.api("/api/v1/rules") else { return false };
        alerts = data["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        !alerts.is_empty() && alerts.iter().all(|alert| alert["health"] != "unknown")
    })
    .with_context(|| format!("{alerts:?}"))?;
    let mut watched = BTreeSet::new();
    for alert in &alerts {
        ensure!(alert["health"] == "ok", "{alert}");
        let expression = alert["query"].as_str().context("an alert without a query")?;
        let metrics = metrics_in(expression);
        ensure!(!metrics.is_empty(), "{expression} reads no metric");
        watched.extend(metrics);
    }
    // On a busy machine one scrape or another comes too late.
    wait::until("all that alerts watch is there", PATIENCE, || {
        watched.retain(|metric| prometheus.query(metric).map_or(true, |values| values.is_empty()));
        watched.is_empty()
    })
    .with_context(|| format!("without data: {watched:?}"))?;
    let mut targets = Value::Null;
    wait::until("the daemon is up", PATIENCE, || {
        targets = prometheus.api("/api/v1/targets").unwrap_or_default();
        targets["activeTargets"][0]["health"] == "up"
    })
    .with_context(|| targets.to_string())?;
    // Prometheus takes OpenMetrics; promtool reads the other format.
    let page = sandbox.directory().join("page");
    fs::write(&page, get(connect(exporter)?, "/metrics", TEXT)?.body)?;
    let checked = tools.promtool(&["check", "metrics"], Some(&page))?;
    ensure!(checked.success()?.is_empty() && checked.stderr.is_empty(), "{checked:?}");
    Ok(())
}
