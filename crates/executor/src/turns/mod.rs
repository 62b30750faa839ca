//! When a session's work may go to the device.
//!
//! | file | concept |
//! |---|---|
//! | `gate` | what all submissions pass, and quiet moments |
//! | `flight`, `marks` | who has work on the device, and how much is inside the driver |
//! | `meter`, `costs` | what launches cost, by samples |
//! | `pacing` | credit: how much may be inside the driver |
//! | `pace` | turns: what sessions share to take them, by `policy::turns::fairness` |

pub(crate) mod costs;
pub(crate) mod flight;
pub(crate) mod gate;
pub(crate) mod marks;
pub(crate) mod meter;
pub(crate) mod pace;
pub(crate) mod pacing;
