//! What commands say to people: what there is not, what is mistyped, whom a limit has reached, what
//! has faulted.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, schema};
use serde_json::Value;

/// Neither has anything to do with the other.
const ONE_USER: u32 = 23_456;
const OTHER_USER: u32 = 23_457;

fn openmps(sandbox: &Sandbox, words: &[&str], environment: &[(&str, &str)]) -> Result<Finished> {
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(words).envs(environment.iter().copied()), PATIENCE)
}

#[test]
fn gpus_and_memory_that_are_not_there_are_named() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for (list, missing) in [("7", "GPU 7"), ("0,1", "GPU 1"), ("GPU-nothing", "GPU GPU-nothing")] {
        let said = openmps(&sandbox, &["run", "--gpu", list, "--", "true"], &[])?;
        ensure!(said.status.code() == Some(1), "{said:?}");
        ensure!(
            said.stderr.contains(&format!("there is no {missing}; there are: 0 (")),
            "{said:?}"
        );
    }
    ensure!(sandbox.processes().is_empty(), "something was started");
    let daemon = Daemon::start(sandbox)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    // By the server's word now.
    let run = |words: &[&str]| openmps(daemon.sandbox(), &[words, &["--", "true"]].concat(), &[]);
    let said = run(&["run", "--gpu", "7"])?;
    ensure!(said.stderr.contains("there is no GPU 7"), "{said:?}");
    let said = run(&["run", "--gpu", "0", "--memory", "1G"])?;
    ensure!(said.success()?.is_empty() && said.stderr.is_empty(), "{said:?}");
    let said = run(&["run", "--memory", "400G"])?;
    ensure!(said.status.success(), "{said:?}");
    ensure!(
        said.stderr.contains("--memory 400.0 GiB is more than a GPU has here: 8.0 GiB"),
        "{said:?}"
    );
    client.dismiss()
}

#[test]
fn programs_of_another_c_library_are_told_so_before_they_start() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (source, program) =
        (sandbox.log_directory().join("a.c"), sandbox.log_directory().join("a"));
    fs::write(&source, "int main(void) { return 0; }")?;
    let mut gcc = Command::new("gcc");
    gcc.arg("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1").arg(&source).arg("-o").arg(&program);
    process::run(&mut gcc, PATIENCE)?.success()?;
    let name = program.to_str().context("a path that is no text")?;
    for words in [&["run", "--softcuda", "--", name][..], &["trace", "--softcuda", "--", name]] {
        let said = openmps(&sandbox, words, &[])?;
        ensure!(said.status.code() == Some(126), "{said:?}");
        ensure!(said.stderr.contains("is a program of musl"), "{said:?}");
    }
    ensure!(sandbox.processes().is_empty(), "something was started");
    let said = openmps(&sandbox, &["doctor", name], &[])?;
    ensure!(said.status.code() == Some(1), "{said:?}");
    ensure!(said.stdout.contains("both need glibc"), "{said:?}");
    let said = openmps(&sandbox, &["doctor", "sh"], &[])?;
    ensure!(said.stdout.contains("sh can be a client"), "{said:?}");
    Ok(())
}

#[test]
fn doctor_names_the_runtime_of_a_program() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for (kind, words) in [
        ("cudart-11.8-shared", "CUDA runtime 11.x (tested: 11.8)"),
        ("cudart-12.9-shared", "CUDA runtime 12.x (tested: 12.9)"),
        ("cudart-13.0-static", "has one linked in"),
        ("driver-api", "names none"),
    ] {
        let name = if kind == "driver-api" { "contexts" } else { "vector_add" };
        let program = sandbox.installation.program(kind, name).display().to_string();
        let said = openmps(&sandbox, &["doctor", &program], &[])?;
        let line = said.success()?.lines().find(|line| line.contains(" CUDA runtime "));
        ensure!(line.is_some_and(|line| line.contains(words)), "{kind}: {said:?}");
    }
    Ok(())
}

#[test]
fn mistyped_variables_are_named_once_and_never_in_a_program() -> Result<()> {
    let wrong = [("OPENMPS_MEMROY_LIMIT", "1G"), ("CUDA_MPS_CLIENT_PRIORITY", "9")];
    let daemon = Daemon::start_with(Sandbox::new()?, &wrong[..1])?;
    let sandbox = daemon.sandbox();
    let named = "OPENMPS_MEMROY_LIMIT is not a variable: did you mean OPENMPS_MEMORY_LIMIT?";
    let log = fs::read_to_string(sandbox.log_directory().join("control.log"))?;
    ensure!(log.matches(named).count() == 1, "{log}");
    let said = openmps(sandbox, &["ps"], &wrong)?;
    said.success()?;
    ensure!(said.stderr.matches(named).count() == 1, "{said:?}");
    ensure!(said.stderr.matches("CUDA_MPS_CLIENT_PRIORITY: `9`").count() == 1, "{said:?}");
    let said = openmps(sandbox, &["ps"], &[])?;
    ensure!(said.stderr.is_empty(), "{said:?}");
    let program = sandbox.installation.program("cudart-12.9-shared", "vector_add");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let said = process::run(command.envs(wrong), PATIENCE)?;
    ensure!(said.success()?.contains("ok") && said.stderr.is_empty(), "{said:?}");
    Ok(())
}

#[test]
fn logs_are_found_where_the_daemon_has_them() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let elsewhere = [("CUDA_MPS_LOG_DIRECTORY", "/nowhere")];
    let said = openmps(daemon.sandbox(), &["logs", "-n", "1000", "control"], &elsewhere)?;
    ensure!(said.success()?.contains("Starting control daemon using socket"), "{said:?}");
    Ok(())
}

#[test]
fn a_groups_limit_says_whom_it_has_reached_and_who_is_in_it() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let run = |words: &[&str]| -> Result<String> {
        Ok(openmps(daemon.sandbox(), words, &[])?.success()?.to_owned())
    };
    run(&["limit", "--group", "others", "--memory", "1G"])?;
    let member = |group: &str| -> Result<Puppet> {
        let mut puppet = daemon.puppet_with(&[("OPENMPS_GROUP", group)])?;
        puppet.must("open")?;
        Ok(puppet)
    };
    let clients = [member("tenant")?, member("tenant")?, member("others")?];
    for words in [["--memory", "2G"], ["--sm-percent", "50"], ["--sm-percent", "100"]] {
        let said = run(&[&["limit", "--group", "tenant"][..], &words].concat())?;
        ensure!(said.contains("in force for 2 running client(s)"), "{words:?}: {said}");
    }
    // Taken away, it is in force for them, too; and a group without members reaches nobody.
    let said = run(&["limit", "--group", "tenant", "--memory", "0"])?;
    ensure!(said.contains("in force for 2 running client(s)"), "{said}");
    let said = run(&["limit", "--group", "nobodys", "--memory", "1G"])?;
    ensure!(said.contains("in force for 0 running client(s)"), "{said}");
    run(&["limit", "--group", "nobodys", "--memory", "0"])?;
    let shown = run(&["limit"])?;
    ensure!(!shown.contains("nobodys"), "an empty group without limits stays: {shown}");
    let (_, members) = shown.split_once("MEMBERS OF").context("no members are listed")?;
    let of = |name: &str| members.lines().find(|line| line.starts_with(name));
    let cells = |name: &str| -> Vec<String> {
        of(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    ensure!(cells("tenant").get(3).is_some_and(|count| count == "2"), "{shown}");
    ensure!(cells("others").get(3).is_some_and(|count| count == "1"), "{shown}");
    clients.into_iter().try_for_each(Puppet::dismiss)
}

#[test]
fn faults_have_a_time_and_are_told_to_their_users() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.puppet()?;
    let mut command = sandbox.command_as(ONE_USER, program, Runtime::OpenMps);
    let mut client = Puppet::spawn(&mut command)?;
    client.must("open")?;
    let answer = client.ask("fault")?;
    ensure!(answer.starts_with("error"), "{answer}");
    let shown_to = |uid: u32, words: &[&str]| -> Result<String> {
        let mut command = sandbox.command_as(uid, sandbox.installation.openmps(), Runtime::OpenMps);
        Ok(process::run(command.args(words), PATIENCE)?.success()?.to_owned())
    };
    for words in [&["ps"][..], &["ps", "--faults"], &["status"]] {
        for uid in [0, ONE_USER] {
            let shown = shown_to(uid, words)?;
            let line = shown.lines().find(|line| line.contains(" fault 1 on device 0"));
            let line = line.with_context(|| format!("{words:?} for {uid}: {shown}"))?;
            ensure!(line.starts_with("20") && line.contains(':'), "no time: {line}");
        }
        let shown = shown_to(OTHER_USER, words)?;
        ensure!(!shown.contains("fault 1"), "{words:?} for another user: {shown}");
    }
    client.kill()
}

#[test]
fn programs_that_missed_the_daemon_are_listed() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut early = Puppet::start(&sandbox, Runtime::OpenMps)?;
    early.must("open")?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let run = |words: &[&str]| -> Result<String> {
        Ok(openmps(daemon.sandbox(), words, &[])?.success()?.to_owned())
    };
    let listed = run(&["ps", "--native"])?;
    let has = |pid: u32| {
        let pid = pid.to_string();
        listed.lines().any(|line| line.split_whitespace().next() == Some(pid.as_str()))
    };
    ensure!(has(early.pid()) && !has(client.pid()), "{listed}");
    early.must("work 1")?;
    client.dismiss()?;
    early.dismiss()
}

#[test]
fn a_program_whose_work_has_failed_is_told_so_once() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    for (level, lines) in [("", 1), ("off", 0)] {
        let said = sandbox.directory().join(format!("said-{level}"));
        let program = sandbox.installation.puppet()?;
        let mut command = sandbox.command(program, Runtime::OpenMps);
        command.env("OPENMPS_LOG", level).stderr(fs::File::create(&said)?);
        let mut client = Puppet::spawn(&mut command)?;
        client.must("open")?;
        for order in ["fault", "work 1", "work 1"] {
            let answer = client.ask(order)?;
            ensure!(answer.starts_with("error"), "{order}: {answer}");
        }
        client.dismiss()?;
        let said = fs::read_to_string(said)?;
        ensure!(said.lines().count() == lines, "with {level:?}: {said:?}");
        let is_told = said.contains(" has failed with CUDA_ERROR_") && said.contains("ps --faults");
        ensure!(is_told == (lines > 0), "{said:?}");
    }
    Ok(())
}

/// Of every command that has `--json`, with something in each of its lists.
#[test]
fn what_commands_print_as_json_is_in_the_schema() -> Result<()> {
    let schema: Value = serde_json::from_str(include_str!("../../docs/schema.json"))?;
    let definitions = schema["$defs"].as_object().context("no definitions")?;
    for (name, definition) in definitions {
        for (field, rules) in definition["properties"].as_object().into_iter().flatten() {
            let told = rules["description"].as_str().unwrap_or_default();
            ensure!(told.len() > 5, "{name}.{field} is not described");
        }
    }
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut faulty = daemon.puppet()?;
    faulty.must("open")?;
    ensure!(faulty.ask("fault")?.starts_with("error"));
    let run = |words: &[&str]| -> Result<String> {
        Ok(openmps(daemon.sandbox(), words, &[])?.success()?.to_owned())
    };
    run(&["reserve", "kept", "--sms", "4"])?;
    let variables = [("OPENMPS_GROUP", "jobs"), ("OPENMPS_ISOLATE", "apart")];
    let mut client = daemon.puppet_with(&variables)?;
    client.must("open")?;
    client.must("work 3")?;
    let directory = daemon.sandbox().directory().join("socket").display().to_string();
    run(&["socket", &directory, "--group", "of-socket", "--memory", "1G"])?;
    for (definition, words) in [
        ("change", &["limit", "--group", "jobs", "--memory", "1G"][..]),
        ("ps", &["ps"]),
        ("native", &["ps", "--native"]),
        ("status", &["status"]),
        ("top", &["top", "--interval", "0.1"]),
        ("limit", &["limit"]),
        ("reserve", &["reserve"]),
        ("socket", &["socket"]),
        ("env", &["env"]),
        ("config", &["config"]),
        ("doctor", &["doctor"]),
        ("logs", &["logs", "-n", "1"]),
    ] {
        let printed = run(&[words, &["--json"]].concat())?;
        let document = serde_json::from_str(&printed)?;
        schema::check(&schema, definition, &document)
            .with_context(|| format!("openmps {}: {printed}", words.join(" ")))?;
    }
    Ok(())
}
