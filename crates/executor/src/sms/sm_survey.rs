//! What a device's SMs can be cut into, found out when the executor starts.
//!
//! A share has to do two things that no single split of the driver's gives together
//! (`cuDevSmResourceSplitByCount`, an H200):
//! - sets of 8 SMs take clusters of up to 8 blocks, alone and joined; pairs of SMs that were split
//!   with `IGNORE_SM_COSCHEDULING` take no cluster of more than 2, and nothing that came out of a
//!   split can be split again;
//! - clusters of 16 run in sets of 16 only, which are two of those sets of 8, but two sets of 8
//!   joined do not take them.
//!
//! Splits of several kinds overlap, and joining what overlaps gives a count of SMs that is wrong.
//! So a kernel writes down which SMs each piece is made of. The pieces of a kind are told apart by
//! their numbers, one bit at a time: all pieces whose number has that bit are joined, and the
//! kernel says which SMs they have. That is some fifteen green contexts instead of ninety, at 1.4
//! ms each. A share is then made of pairs, in an order in which the pairs of a set are neighbours,
//! and so are two sets that are one set of 16 ([`policy::sms::partitions`]); where it holds whole
//! sets the driver is given those.

use super::partition::{
    Partition, SPLIT_IGNORE_COSCHEDULING, SPLIT_MAX_CLUSTER, describe, device_resource,
    multiprocessors, split,
};
use crate::context::Context;
use crate::session::failure::Failure;
use crate::submit::own_kernels::OwnKernels;
use cuda_abi::types::*;
use executor_link::log::log_server;
use policy::sms::partitions::{ClusterSets, Part, Units};
use policy::sms::sm_sets::{Arrangement, Misfit, SmSet, arrange};
use thiserror::Error;

/// SMs of the smallest unit that is asked for; the driver may give larger ones.
const UNIT: u32 = 2;
/// SMs have numbers below this.
const MOST_SMS: usize = 1024;

/// Why a device's SMs are not known.
#[derive(Debug, Error)]
enum SurveyError {
    #[error("the driver answered {0:?} to a question about its SMs")]
    Driver(CUresult),
    #[error("{0}")]
    Refused(String),
    #[error("a kernel that notes its SM saw others than the driver counts")]
    Unequal,
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

impl From<Failure> for SurveyError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Cuda(result) => Self::Driver(result),
            Failure::Protocol(message) => Self::Refused(message),
            Failure::Elsewhere => Self::Driver(CUresult::ERROR_NOT_READY),
        }
    }
}

/// What shares are made of.
#[derive(Default)]
pub(crate) struct Survey {
    /// The smallest sets, in the order of [`Units`].
    units: Vec<CUdevResource>,
    clusters: ClusterSets,
    /// The cluster sets, in the same order.
    sets: Vec<CUdevResource>,
    /// What each two partners are together.
    joint_sets: Vec<CUdevResource>,
}

/// Pieces of one split, and the SMs that each has.
struct Pieces {
    resources: Vec<CUdevResource>,
    sms: Vec<SmSet>,
}

impl Survey {
    /// Looks at a device. Where it has no clusters, or the look fails, shares are of pairs alone,
    /// as the log says.
    pub(crate) fn of_device(context: &Context, own_kernels: Option<&OwnKernels>) -> Self {
        let Ok(pairs) = cut_into_units(context) else { return Self::default() };
        let found = own_kernels.map(|kernels| find_sets(context, kernels, &pairs));
        match found {
            Some(Ok(Some(survey))) => survey,
            Some(Err(error)) => {
                log_server!("Shares of SMs take no clusters of more than 2 blocks: {error}");
                Self { units: pairs, ..Self::default() }
            }
            Some(Ok(None)) | None => Self { units: pairs, ..Self::default() },
        }
    }

    /// The smallest sets.
    pub(crate) fn units(&self) -> &[CUdevResource] {
        &self.units
    }

    /// Which of them take clusters together.
    pub(crate) fn clusters(&self) -> ClusterSets {
        self.clusters
    }

    /// What the driver is given for a share of these units.
    pub(crate) fn resources(&self, units: &Units) -> Vec<CUdevResource> {
        let resource = |part| match part {
            Part::Joint(index) => self.joint_sets[index],
            Part::Set(index) => self.sets[index],
            Part::Unit(index) => self.units[index],
        };
        self.clusters.cover(units).into_iter().map(resource).collect()
    }
}

/// All SMs in the smallest sets that the driver gives.
fn cut_into_units(context: &Context) -> Result<Vec<CUdevResource>, Failure> {
    let whole = device_resource(context)?;
    let (mut units, remaining) = split(context, &whole, UNIT, SPLIT_IGNORE_COSCHEDULING, None)?;
    units.extend(remaining.filter(|rest| multiprocessors(rest) > 0));
    Ok(units)
}

/// The sets that take clusters; `None` on a device without clusters, or with so few SMs that a
/// share could have no less than half of it.
fn find_sets(
    context: &Context,
    kernels: &OwnKernels,
    pairs: &[CUdevResource],
) -> Result<Option<Survey>, SurveyError> {
    let whole = device_resource(context)?;
    // SAFETY: plain numbers, of a resource of SMs.
    let size = unsafe { whole.anonymous.sm.smCoscheduledAlignment };
    if size <= UNIT || multiprocessors(&whole) < 3 * size {
        return Ok(None);
    }
    let (sets, _) = split(context, &whole, size, 0, None)?;
    let sets = Pieces::look_at(context, kernels, sets)?;
    let units = Pieces::look_at(context, kernels, pairs.to_vec())?;
    let joint = find_joint_sets(context, kernels, &whole, 2 * size, &sets.sms)?;
    let Arrangement { units: order, sets: set_order, joints, clusters } =
        arrange(&units.sms, &sets.sms, joint.as_ref().map_or(&[], |joint| &joint.sms))?;
    let pick = |from: &[CUdevResource], order: Vec<usize>| -> Vec<CUdevResource> {
        order.into_iter().map(|index| from[index]).collect()
    };
    Ok(Some(Survey {
        units: pick(&units.resources, order),
        clusters,
        sets: pick(&sets.resources, set_order),
        joint_sets: joint.map_or_else(Vec::new, |joint| pick(&joint.resources, joints)),
    }))
}

/// As many sets of `size` SMs as are made of two sets each. Asked for more than there are, the
/// driver gives others, which take fewer clusters; so fewer and fewer are asked for.
fn find_joint_sets(
    context: &Context,
    kernels: &OwnKernels,
    whole: &CUdevResource,
    size: u32,
    sets: &[SmSet],
) -> Result<Option<Pieces>, SurveyError> {
    for count in (1..=multiprocessors(whole) / size).rev() {
        let Ok((found, _)) = split(context, whole, size, SPLIT_MAX_CLUSTER, Some(count)) else {
            continue;
        };
        // The first one tells: it is looked at alone.
        let first = Pieces::look_at(context, kernels, found[..1.min(found.len())].to_vec())?;
        let is_made_of_sets =
            |joint: &SmSet| sets.iter().filter(|set| set.is_within(joint)).count() == 2;
        if first.sms.first().is_some_and(is_made_of_sets) {
            let pieces = Pieces::look_at(context, kernels, found)?;
            return Ok(pieces.sms.iter().all(is_made_of_sets).then_some(pieces));
        }
    }
    Ok(None)
}

impl Pieces {
    /// Finds out which SMs each of these disjoint pieces has.
    fn look_at(
        context: &Context,
        kernels: &OwnKernels,
        resources: Vec<CUdevResource>,
    ) -> Result<Self, SurveyError> {
        let mut numbers = vec![0_usize; MOST_SMS];
        for bit in 0..usize::BITS - resources.len().leading_zeros() {
            let has_bit = |&(index, _): &(usize, &CUdevResource)| (index + 1) >> bit & 1 == 1;
            let mut joined: Vec<CUdevResource> =
                resources.iter().enumerate().filter(has_bit).map(|(_, piece)| *piece).collect();
            for sm in seen(context, kernels, &mut joined)? {
                numbers[sm] |= 1 << bit;
            }
        }
        let mut sms = vec![SmSet::default(); resources.len()];
        for (sm, &number) in numbers.iter().enumerate().filter(|(_, number)| **number > 0) {
            let piece = sms.get_mut(number - 1);
            piece.ok_or(SurveyError::Unequal)?.insert(sm);
        }
        // A kernel that did not reach all SMs, since others were at work, would have taken one
        // piece's for another's.
        let is_whole =
            |(piece, sms): (&CUdevResource, &SmSet)| multiprocessors(piece) == sms.count();
        match resources.iter().zip(&sms).all(is_whole) {
            true => Ok(Self { resources, sms }),
            false => Err(SurveyError::Unequal),
        }
    }
}

/// The SMs on which a kernel runs that has these resources.
fn seen(
    context: &Context,
    kernels: &OwnKernels,
    resources: &mut [CUdevResource],
) -> Result<Vec<usize>, SurveyError> {
    let count: u32 = resources.iter().map(multiprocessors).sum();
    let partition = Partition::create(context, describe(context, resources)?, None)?;
    let stream = partition.stream(context, 0)?;
    let noted = kernels.note_sms(context, stream, count, MOST_SMS);
    let _ = context.end_stream(stream);
    noted.map_err(SurveyError::Driver)
}
