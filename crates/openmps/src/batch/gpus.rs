//! The GPUs of a job, by the numbers that the batch system gives them: those of `/dev/nvidiaN`,
//! which are CUDA's in order of PCI buses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// More than a node has.
const MOST: u32 = 256;

/// Numbers of GPUs, ascending, each once; at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub(crate) struct Gpus(Vec<u32>);

/// Why a text is no list of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of GPUs: numbers or ranges are expected, as in 0,2-3")]
pub(crate) struct GpusError(String);

impl Gpus {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The greatest number.
    pub(crate) fn last(&self) -> u32 {
        self.0.last().copied().unwrap_or(0)
    }

    /// As the job's programs count them under its daemon, which has no others: `0,1`.
    pub(crate) fn renumbered(&self) -> String {
        let numbers: Vec<String> = (0..self.0.len()).map(|number| number.to_string()).collect();
        numbers.join(",")
    }

    /// Names what belongs to these GPUs: `gpu-0-1`.
    pub(crate) fn key(&self) -> String {
        self.0.iter().fold("gpu".to_owned(), |key, number| format!("{key}-{number}"))
    }
}

impl TryFrom<Vec<u32>> for Gpus {
    type Error = GpusError;

    fn try_from(mut numbers: Vec<u32>) -> Result<Self, GpusError> {
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() || numbers.iter().any(|number| *number >= MOST) {
            return Err(GpusError(format!("{numbers:?}")));
        }
        Ok(Gpus(numbers))
    }
}

impl From<Gpus> for Vec<u32> {
    fn from(gpus: Gpus) -> Self {
        gpus.0
    }
}

impl FromStr for Gpus {
    type Err = GpusError;

    fn from_str(text: &str) -> Result<Self, GpusError> {
        let wrong = || GpusError(text.to_owned());
        let number = |word: &str| {
            word.trim().parse::<u32>().ok().filter(|number| *number < MOST).ok_or_else(wrong)
        };
        let mut numbers = Vec::new();
        for word in text.split(',') {
            match word.split_once('-') {
                Some((first, last)) => numbers.extend(number(first)?..=number(last)?),
                None => numbers.push(number(word)?),
            }
        }
        Gpus::try_from(numbers).map_err(|_| wrong())
    }
}

/// `0,2,3`.
impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        for (text, list, key, seen) in [
            ("0", "0", "gpu-0", "0"),
            ("3,1", "1,3", "gpu-1-3", "0,1"),
            ("0-2,2", "0,1,2", "gpu-0-1-2", "0,1,2"),
        ] {
            let gpus: Gpus = text.parse().unwrap();
            assert_eq!(gpus.to_string(), list);
            assert_eq!((gpus.key().as_str(), gpus.renumbered().as_str()), (key, seen));
        }
        for text in ["", "a", "0,,1", "GPU-1234", "0-999999999", "2-1", "-1"] {
            assert!(text.parse::<Gpus>().is_err(), "{text}");
        }
    }
}
