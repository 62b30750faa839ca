//! What a scrape says of a client at work: every metric of the list, with labels that join with those of NVIDIA's DCGM exporter.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use openmps_tests::prometheus::{Answer, get};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Sandbox};

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
