//! Where an executor is, and how far it is.

use policy::domains::Domain;

/// A device, and who shares the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The server's number of the device.
    pub(crate) device: usize,
    pub(crate) domain: Domain,
    pub(crate) side: Side,
}

impl Place {
    /// The executor that is there from the start.
    pub(crate) fn first(device: usize, domain: Domain) -> Self {
        Self { device, domain, side: Side::First }
    }

    /// Where it is on its device.
    pub(crate) fn seat(self) -> Seat {
        (self.domain, self.side)
    }
}

/// The clients of a domain can live in two contexts of a device: see [`crate::contexts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    First,
    /// For those who would wait for a long kernel in the other.
    Second,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// An executor among those of a device.
pub(crate) type Seat = (Domain, Side);

/// How far an executor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It makes its context.
    Starting,
    Ready,
}
