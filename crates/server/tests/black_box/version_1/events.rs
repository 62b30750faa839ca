//! A conversation between a client library and its server, a line for each thing that happened.

use std::fmt::Write;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The client sent a packet.
    Asked(String),
    /// The server sent one; descriptors may have come with it.
    Told(String),
    /// The client sent the file of a region over the session's socket: its length, and the packet.
    Region(u64, String),
    /// The client wrote host memory: from which address on, and what.
    Wrote(u64, Vec<u8>),
    /// The client posted a command.
    Posted(Vec<u8>),
    /// The client posted a command that is answered next.
    Called(Vec<u8>),
    /// The answer: status and reply.
    Answered(u32, Vec<u8>),
    /// A stream's completion word had a value.
    Reached(usize, u64),
    /// The device had written host memory by then.
    Found(u64, Vec<u8>),
}

impl Event {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Asked(packet) => format!("asked {packet}"),
            Self::Told(packet) => format!("told {packet}"),
            Self::Region(size_bytes, packet) => format!("region {size_bytes} {packet}"),
            Self::Wrote(address, bytes) => format!("wrote {address} {}", hex(bytes)),
            Self::Posted(command) => format!("posted {}", hex(command)),
            Self::Called(command) => format!("called {}", hex(command)),
            Self::Answered(status, reply) => format!("answered {status} {}", hex(reply)),
            Self::Reached(stream, value) => format!("reached {stream} {value}"),
            Self::Found(address, bytes) => format!("found {address} {}", hex(bytes)),
        }
    }

    pub(super) fn of_line(line: &str) -> Self {
        let (what, rest) = line.split_once(' ').expect(line);
        let pair = || rest.split_once(' ').expect(line);
        let number = |text: &str| text.parse::<u64>().expect(line);
        let numbered = || (number(pair().0), unhex(pair().1));
        match what {
            "asked" => Self::Asked(rest.to_owned()),
            "told" => Self::Told(rest.to_owned()),
            "region" => Self::Region(number(pair().0), pair().1.to_owned()),
            "wrote" => Self::Wrote(numbered().0, numbered().1),
            "posted" => Self::Posted(unhex(rest)),
            "called" => Self::Called(unhex(rest)),
            "answered" => Self::Answered(numbered().0 as u32, numbered().1),
            "reached" => Self::Reached(number(pair().0) as usize, number(pair().1)),
            "found" => Self::Found(numbered().0, numbered().1),
            _ => panic!("{line}"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |two: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(two).expect("hexadecimal"), 16).expect("hexadecimal")
    };
    digits.map(byte).collect()
}
