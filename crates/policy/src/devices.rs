//! Which devices a server can serve: NVIDIA's MPS guide, sections 2.3.1.1 and 2.3.4.

/// Compute capability below which MPS does not exist.
const OLDEST: (i32, i32) = (3, 5);
/// From here on clients have address spaces of their own; a server has either such devices or older
/// ones.
const VOLTA: (i32, i32) = (7, 0);

/// What of a device decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Major and minor number.
    pub compute_capability: (i32, i32),
    /// One range of addresses for host and device.
    pub unified_addressing: bool,
}

/// What becomes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is served.
    Served,
    /// It is left out: there is a Volta or later device beside it.
    LeftOut,
}

/// Chooses among the devices that `CUDA_VISIBLE_DEVICES` leaves.
///
/// # Errors
/// Why no server can start with these devices.
pub fn choose(candidates: &[Candidate]) -> Result<Vec<Choice>, String> {
    for (index, device) in candidates.iter().enumerate() {
        let (major, minor) = device.compute_capability;
        if device.compute_capability < OLDEST {
            return Err(format!(
                "device {index} has compute capability {major}.{minor}, and MPS needs 3.5 or higher: leave it out by CUDA_VISIBLE_DEVICES"
            ));
        }
        if !device.unified_addressing {
            return Err(format!(
                "device {index} has no unified virtual addressing, which MPS needs: leave it out by CUDA_VISIBLE_DEVICES"
            ));
        }
    }
    let any_volta = candidates.iter().any(|device| device.compute_capability >= VOLTA);
    let choose = |device: &Candidate| match any_volta && device.compute_capability < VOLTA {
        true => Choice::LeftOut,
        false => Choice::Served,
    };
    Ok(candidates.iter().map(choose).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(major: i32, minor: i32) -> Candidate {
        Candidate { compute_capability: (major, minor), unified_addressing: true }
    }

    #[test]
    fn old_devices_are_left_out_beside_volta_only() {
        let (old, volta) = (device(6, 1), device(7, 0));
        assert_eq!(choose(&[old, volta]), Ok(vec![Choice::LeftOut, Choice::Served]));
        assert_eq!(choose(&[old, old]), Ok(vec![Choice::Served; 2]));
    }

    #[test]
    fn what_mps_does_not_support_keeps_the_server_from_starting() {
        assert!(choose(&[device(9, 0), device(3, 0)]).unwrap_err().contains("device 1"));
        assert!(choose(&[device(3, 5)]).is_ok());
        let without = Candidate { unified_addressing: false, ..device(9, 0) };
        assert!(choose(&[without]).unwrap_err().contains("unified"));
    }
}
