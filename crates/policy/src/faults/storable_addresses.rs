//! Which addresses of variables and functions an image's kernels could store in memory: where code
//! lies is the context's to say, so such addresses are wrong in another one.
//!
//! An address that no instruction can have is stored nowhere. In texts that is followed from
//! register to register ([`text`]). In machine code it is not: whatever is read of a table of
//! addresses could be stored ([`machine_code`]). That says enough, since most variables of most
//! images are never read: a compiler leaves in what a header declares.
//!
//! What cannot be told could be stored.

mod elf;
mod instruction;
mod machine_code;
mod text;

use cuda_abi::image::Image;
use std::collections::BTreeSet;
use std::fmt;

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorableAddresses {
    /// None.
    Nothing,
    /// Those of these variables and functions.
    Of(BTreeSet<String>),
    /// Any, as the code has what it says.
    Unknown(&'static str),
}

impl StorableAddresses {
    /// Of an image of code.
    pub fn of(image: &[u8]) -> Self {
        match Image::parse(image) {
            Ok(Image::Elf(elf)) => elf::storable(&elf).unwrap_or_else(Self::Unknown),
            Ok(Image::Ptx(text)) => text::storable(text).unwrap_or_else(Self::Unknown),
            _ => Self::Unknown("a format that is not read"),
        }
    }

    /// Whether there are any.
    pub fn are_any(&self) -> bool {
        *self != Self::Nothing
    }

    fn from_names(names: BTreeSet<String>) -> Self {
        match names.is_empty() {
            true => Self::Nothing,
            false => Self::Of(names),
        }
    }
}

/// For the log, where names can be long and many.
impl fmt::Display for StorableAddresses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST_NAMES: usize = 3;
        const MOST_CHARACTERS: usize = 80;
        match self {
            Self::Nothing => formatter.write_str("nothing"),
            Self::Unknown(why) => formatter.write_str(why),
            Self::Of(names) => {
                for (number, name) in names.iter().take(MOST_NAMES).enumerate() {
                    let separator = if number == 0 { "" } else { ", " };
                    write!(formatter, "{separator}{name:.MOST_CHARACTERS$}")?;
                }
                match names.len().saturating_sub(MOST_NAMES) {
                    0 => Ok(()),
                    more => write!(formatter, " and {more} more"),
                }
            }
        }
    }
}

/// Tables of CUDA's mathematical functions, whose code reads them and does no more. Programs may
/// not have such names.
fn is_table_of_toolkit(name: &[u8]) -> bool {
    name.starts_with(b"__cudart_") || name == b"__cr_lgamma_table"
}

fn printable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
