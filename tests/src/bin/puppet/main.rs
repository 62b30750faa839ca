//! A CUDA program that does what it reads from standard input and answers each line with one line.
//!
//! | order | does | answer |
//! |---|---|---|
//! | `open [DEVICE]` | initialises CUDA and makes the primary context of the device (0 without it) current | `ok` |
//! | `context` | makes another context on device 0, and destroys it; the first has been opened | `ok` |
//! | `allocate BYTES` | allocates and keeps device memory | `ok` |
//! | `free` | frees the latest allocation | `ok` |
//! | `address` | | the device address of the latest allocation |
//! | `free-bytes` | `cuMemGetInfo` | a number |
//! | `memory` | `cuMemGetInfo` and `cuDeviceTotalMem` | three numbers of bytes: free, total, the device's |
//! | `work N` | N kernels over data of its own, copied in and out and checked against the CPU | `ok`, or `wrong` |
//! | `meet N` | N times a kernel waits for what another one, launched later on another stream, writes | `ok`, or `wrong` |
//! | `hold` | a kernel that runs until the next line, whatever that is | `ok` when the kernel has been launched, and again at its end |
//! | `churn` | answers, then works without end | `ok` |
//! | `fault` | a kernel that writes to address 0x10, then a wait for it | `ok` if that went well |
//! | `poke ADDRESS` | the same with another address | |
//! | `keep hold` | loads the code of `hold`, of which the next ones load none then | `ok` |
//! | `keep poke` | gets the kernel of `poke` | `ok` |
//! | `poke kept ADDRESS` | `poke` with that | `ok` if that went well |
//! | `keep copied` | makes what the next one needs | `ok` |
//! | `copied` | a kernel on a blocking stream, and a synchronous copy, which waits for it | `ok`, or `wrong` |
//! | `counted CALL` | one call [`COUNTED_ROUNDS`](openmps_tests::puppet::COUNTED_ROUNDS) times: see [`counted`] | the fewest instructions of the client library that one took |
//! | `bad NAME [ADDRESS]` | one call that CUDA refuses: see [`bad`] | |
//!
//! What the driver refuses is answered with `error CODE`, the number of the `CUresult`. At the end
//! of its input it exits with 0.

mod bad;
mod counted;
mod meet;
mod work;

use std::io::{Write, stdin, stdout};

use anyhow::{Context as _, Result, bail};
use cuda_driver::{Context, DeviceBuffer, Error, Function};

fn main() -> Result<()> {
    let mut puppet = State::default();
    let mut lines = stdin().lines();
    while let Some(line) = lines.next() {
        let line = line?;
        let held = match line.as_str() {
            "hold" => puppet.hold(|| {
                writeln!(stdout(), "ok")?;
                stdout().flush()?;
                Ok(lines.next().transpose().map(drop)?)
            }),
            _ => Ok(()),
        };
        let answer = match held.and_then(|()| puppet.obey(&line)) {
            Ok(answer) => answer,
            Err(error) => match error.downcast_ref::<Error>().and_then(Error::code) {
                Some(code) => format!("error {code}"),
                None => format!("failed: {error:#}"),
            },
        };
        writeln!(stdout(), "{answer}")?;
        stdout().flush()?;
        if line == "churn" {
            puppet.churn()?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct State {
    kept: Vec<DeviceBuffer<u8>>,
    context: Option<Context>,
    poke: Option<Function<'static>>,
    copied: Option<work::Copied>,
    holding: Option<meet::Holding<'static>>,
}

impl State {
    fn obey(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["open"] => self.context = Some(Context::new(0)?),
            ["open", device] => self.context = Some(Context::new(device.parse()?)?),
            ["context"] => {
                let api = self.context()?.api();
                let mut made = std::ptr::null_mut();
                // SAFETY: the pointer is valid for the call; what was made is destroyed at once,
                // which makes the first current again.
                unsafe {
                    api.check("cuCtxCreate", (api.context_create)(&raw mut made, 0, 0))?;
                    api.check("cuCtxDestroy", (api.context_destroy)(made))?;
                }
            }
            ["allocate", size_bytes] => {
                let buffer = DeviceBuffer::new(self.context()?, size_bytes.parse()?)?;
                self.kept.push(buffer);
            }
            ["free"] => drop(self.kept.pop().context("nothing was allocated")?),
            ["address"] => {
                let latest = self.kept.last().context("nothing was allocated")?;
                return Ok(latest.address().to_string());
            }
            ["free-bytes"] => return Ok(self.context()?.memory_info_bytes()?.0.to_string()),
            ["memory"] => {
                let context = self.context()?;
                let (free, total) = context.memory_info_bytes()?;
                return Ok(format!("{free} {total} {}", context.device_memory_bytes()?));
            }
            ["work", kernels] => return self.work(kernels.parse()?),
            ["meet", meetings] => {
                let right = meet::meet(self.context()?, meetings.parse()?)?;
                return Ok(if right { "ok" } else { "wrong" }.to_owned());
            }
            ["churn" | "hold"] => {}
            ["fault"] => work::write_to(self.context()?, 0x10)?,
            ["keep", "hold"] => {
                let module = Box::leak(Box::new(meet::load(self.context()?)?));
                self.holding = Some(meet::Holding::of(module)?);
            }
            ["keep", "poke"] => {
                // Until the process ends.
                let module = Box::leak(Box::new(self.context()?.load_ptx(work::PTX)?));
                self.poke = Some(module.function("poke")?);
            }
            ["poke", "kept", address] => {
                let poke = self.poke.as_ref().context("the order `keep poke` comes first")?;
                work::write_by(poke, self.context()?, address.parse()?)?;
            }
            ["keep", "copied"] => self.copied = Some(work::Copied::of(self.context()?)?),
            ["copied"] => {
                let copied = self.copied.as_mut().context("`keep copied` comes first")?;
                return Ok(if copied.again()? { "ok" } else { "wrong" }.to_owned());
            }
            ["poke", address] => work::write_to(self.context()?, address.parse()?)?,
            ["counted", call] => return Ok(counted::call(self.context()?, call)?.to_string()),
            ["bad", name] => bad::call(self.context()?, name, 0)?,
            ["bad", name, address] => bad::call(self.context()?, name, address.parse()?)?,
            _ => bail!("no such order: {line}"),
        }
        Ok("ok".to_owned())
    }

    fn hold(&self, goes_on: impl FnOnce() -> Result<()>) -> Result<()> {
        let context = self.context()?;
        match &self.holding {
            Some(holding) => holding.hold(context, goes_on),
            None => meet::Holding::of(&meet::load(context)?)?.hold(context, goes_on),
        }
    }

    fn context(&self) -> Result<&Context> {
        self.context.as_ref().context("the order `open` comes first")
    }

    fn work(&self, kernels: u32) -> Result<String> {
        let right = work::work(self.context()?, kernels)?;
        Ok(if right { "ok" } else { "wrong" }.to_owned())
    }

    fn churn(&self) -> Result<()> {
        while work::work(self.context()?, 5)? {}
        bail!("wrong results");
    }
}
