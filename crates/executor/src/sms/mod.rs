//! On which SMs work runs.

pub(crate) mod lanes;
pub(crate) mod partition;
pub(crate) mod resharing;
pub(crate) mod session_partitions;
pub(crate) mod sm_survey;
