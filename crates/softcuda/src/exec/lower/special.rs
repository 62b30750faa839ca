//! Special registers by name.

use crate::exec::code::{Special, Width};
use crate::exec::op::moves::Counter;

/// Where a special register's value comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum SpecialSource {
    /// Constant while the block runs.
    Fill(Special),
    /// Read each time.
    Counter(Counter, Width),
}

/// The special register `name`, if it is one.
pub(super) fn special_register(name: &str) -> Option<SpecialSource> {
    use SpecialSource::{Counter as Read, Fill};
    let (base, axis) = match name.split_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        Some((base, "w")) => (base, 3),
        Some(_) => return None,
        None => (name, 0),
    };
    Some(match base {
        "%tid" => Fill(Special::Tid(axis)),
        "%ntid" => Fill(Special::Ntid(axis)),
        "%ctaid" => Fill(Special::Ctaid(axis)),
        "%nctaid" => Fill(Special::Nctaid(axis)),
        "%laneid" => Fill(Special::LaneId),
        "%warpid" => Fill(Special::WarpId),
        "%nwarpid" => Fill(Special::NwarpId),
        "%smid" => Read(Counter::SmId, Width::W32),
        "%nsmid" => Fill(Special::NsmId),
        "%gridid" => Fill(Special::GridId),
        "%lanemask_eq" => Fill(Special::LanemaskEq),
        "%lanemask_le" => Fill(Special::LanemaskLe),
        "%lanemask_lt" => Fill(Special::LanemaskLt),
        "%lanemask_ge" => Fill(Special::LanemaskGe),
        "%lanemask_gt" => Fill(Special::LanemaskGt),
        "%clock" => Read(Counter::Clock, Width::W32),
        "%clock_hi" => Read(Counter::ClockHigh, Width::W32),
        "%clock64" => Read(Counter::Clock, Width::W64),
        "%globaltimer" => Read(Counter::GlobalTimer, Width::W64),
        "%globaltimer_lo" => Read(Counter::GlobalTimer, Width::W32),
        "%globaltimer_hi" => Read(Counter::GlobalTimerHigh, Width::W32),
        "%total_smem_size" => Fill(Special::TotalSmem),
        "%aggr_smem_size" => Fill(Special::AggregateSmem),
        "%dynamic_smem_size" => Fill(Special::DynamicSmem),
        "%clusterid" => Fill(Special::ClusterId(axis)),
        "%nclusterid" => Fill(Special::NclusterId(axis)),
        "%cluster_ctaid" => Fill(Special::ClusterCtaid(axis)),
        "%cluster_nctaid" => Fill(Special::ClusterNctaid(axis)),
        "%cluster_ctarank" => Fill(Special::ClusterCtarank),
        "%cluster_nctarank" => Fill(Special::ClusterNctarank),
        "%is_explicit_cluster" => Fill(Special::IsExplicitCluster),
        "%reserved_smem_offset_begin"
        | "%reserved_smem_offset_end"
        | "%reserved_smem_offset_cap" => Fill(Special::ReservedSmem(0)),
        "%pm0" | "%pm1" | "%pm2" | "%pm3" | "%pm4" | "%pm5" | "%pm6" | "%pm7" => {
            Read(Counter::Zero, Width::W32)
        }
        _ => {
            if let Some(number) = base.strip_prefix("%envreg") {
                return number
                    .parse()
                    .ok()
                    .filter(|&n: &u8| n < 32)
                    .map(|n| Fill(Special::Envreg(n)));
            }
            let number = base.strip_prefix("%reserved_smem_offset_")?;
            Fill(Special::ReservedSmem(number.parse().ok()?))
        }
    })
}
