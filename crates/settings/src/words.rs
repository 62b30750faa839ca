//! Values of which there are a few, each with a word.

use crate::ValueError;
use serde::{Deserialize, Serialize};

/// One of the words that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// As it is typed.
    pub word: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
}

/// A type whose values are words; the default is the first.
pub trait Words: Copy + Default + PartialEq + 'static {
    /// Its values with their words.
    const ALL: &'static [(Self, Word)];
    /// The words.
    const WORDS: &'static [Word];

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(value, _)| *value == self).map_or("", |(_, word)| word.word)
    }

    /// The value of a word.
    ///
    /// # Errors
    /// [`ValueError::Choice`].
    fn parse_word(text: &str) -> Result<Self, ValueError> {
        let found = Self::ALL.iter().find(|(_, word)| word.word == text.trim());
        found.map(|(value, _)| *value).ok_or_else(|| not_one_of(text, Self::WORDS))
    }
}

/// That a text is none of these words.
pub(crate) fn not_one_of(text: &str, words: &[Word]) -> ValueError {
    ValueError::Choice { text: text.to_owned(), expected: listed(words) }
}

/// Words as a sentence has them: `fail, queue or spill`.
pub(crate) fn listed(words: &[Word]) -> String {
    let words: Vec<&str> = words.iter().map(|word| word.word).collect();
    match words.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        words => words.concat(),
    }
}

macro_rules! words {
    ($(
        $(#[doc = $about:literal])+
        $name:ident { $($(#[doc = $help:literal])+ $value:ident = $word:literal,)+ }
    )+) => {$(
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[doc = $help])+ $value,)+ }

        impl Words for $name {
            const ALL: &'static [(Self, Word)] =
                &[$((Self::$value, Word { word: $word, help: concat!($($help),+) }),)+];
            const WORDS: &'static [Word] =
                &[$(Word { word: $word, help: concat!($($help),+) },)+];
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ALL[0].0
            }
        }
    )+};
}

words! {
    /// Whose clients get a server when.
    Provisioning {
        /// One user's server at a time, as NVIDIA MPS without root's option.
        OneUserAtATime = "one-user-at-a-time",
        /// One server for all users.
        Multiuser = "multiuser",
        /// A server per user, at the same time.
        Concurrent = "concurrent",
    }
    /// What happens to an allocation that the device has no room for.
    MemoryPolicy {
        /// The allocation fails, as CUDA has it.
        Fail = "fail",
        /// The allocation waits until others free memory.
        Queue = "queue",
        /// Idle programs' memory is moved out to the host, and back before they go on.
        Spill = "spill",
    }
    /// What a program is told as the memory of a device (`cuMemGetInfo`, `cuDeviceTotalMem`) where
    /// a limit holds for it.
    Total {
        /// What the device has, as NVIDIA MPS tells it.
        Device = "device",
        /// The limit.
        Limit = "limit",
    }
    /// What becomes of programs that come during a recovery.
    Arrivals {
        /// They wait until it is over.
        Wait = "wait",
        /// They are told CUDA_ERROR_MPS_SERVER_NOT_READY, as by NVIDIA MPS.
        Refuse = "refuse",
    }
    /// Which clients of a server share an executor.
    Grouping {
        /// All clients of a server, which is one user's unless it was made for several.
        Server = "user",
        /// Clients of one control group: a container, a pod, a job.
        ControlGroup = "cgroup",
        /// Every process alone.
        Process = "process",
    }
    /// Whether a client's kernels are checked.
    GuardMode {
        /// Not.
        Off = "off",
        /// Those that can be; others run as they are.
        On = "on",
        /// Those that cannot be are refused.
        Strict = "strict",
    }
}

impl GuardMode {
    /// Reads the words, and `1` and `0` as switches have them.
    ///
    /// # Errors
    /// [`ValueError::Choice`].
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        match text.trim() {
            "1" => Ok(Self::On),
            "0" => Ok(Self::Off),
            _ => Self::parse_word(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        for (policy, word) in MemoryPolicy::ALL {
            assert_eq!(
                (MemoryPolicy::parse_word(word.word), policy.word()),
                (Ok(*policy), word.word)
            );
        }
        let error = MemoryPolicy::parse_word("swap").unwrap_err().to_string();
        assert_eq!(error, "`swap` cannot be used: give fail, queue or spill");
        assert_eq!(MemoryPolicy::default(), MemoryPolicy::Fail);
        let modes = ["1", "on", " strict ", "0", "off"].map(|text| GuardMode::parse(text).unwrap());
        use GuardMode::{Off, On, Strict};
        assert_eq!(modes, [On, On, Strict, Off, Off]);
        assert!(GuardMode::parse("yes").is_err());
    }
}
