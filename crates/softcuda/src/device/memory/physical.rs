//! Physical allocations: memfds, charged to a device's account while they live.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use super::{GRANULARITY_BYTES, holders, round_up};
use crate::device::error::{DeviceError, Result};
use crate::device::machine::Machine;

/// How much memory a device has and how much of it is taken, in bytes: by this process, or by all
/// that share the machine.
#[derive(Debug)]
pub(crate) struct Account {
    total_bytes: u64,
    used_bytes: AtomicU64,
    /// The machine, if it is shared, and the device's number on it.
    machine: Option<(Arc<Machine>, u32)>,
}

impl Account {
    /// The account of a device that no other process uses.
    pub(crate) fn new(total_bytes: u64) -> Self {
        Account { total_bytes, used_bytes: AtomicU64::new(0), machine: None }
    }

    /// The account of a machine's device.
    pub(crate) fn shared(total_bytes: u64, machine: Arc<Machine>, device: u32) -> Self {
        Account { machine: Some((machine, device)), ..Account::new(total_bytes) }
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let used = match &self.machine {
            Some((machine, device)) => machine.used_bytes(*device),
            // A statistic: no partner.
            None => self.used_bytes.load(Ordering::Relaxed),
        };
        self.total_bytes.saturating_sub(used)
    }

    fn charge(&self, size_bytes: u64) -> Result<()> {
        if let Some((machine, device)) = &self.machine {
            let take = || machine.take(*device, size_bytes, self.total_bytes);
            let is_taken = take() || {
                holders::refund_all();
                take()
            };
            return if is_taken { Ok(()) } else { Err(DeviceError::OutOfMemory) };
        }
        // Relaxed: the counter guards no other memory.
        self.used_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(size_bytes).filter(|&sum| sum <= self.total_bytes)
            })
            .map(|_| ())
            .map_err(|_| DeviceError::OutOfMemory)
    }

    pub(super) fn refund(&self, size_bytes: u64) {
        match &self.machine {
            Some((machine, device)) => machine.give(*device, size_bytes),
            // Relaxed: as in `charge`.
            None => {
                self.used_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
            }
        }
    }
}

/// One memfd of device (or host-resident) memory; zero when fresh. Dropping the last reference
/// frees it.
#[derive(Debug)]
pub(crate) struct Physical {
    fd: OwnedFd,
    size_bytes: u64,
    /// Ordinal of the device it belongs to; `None`: host memory.
    device: Option<u32>,
    account: Option<Arc<Account>>,
}

/// Prefix of the memfd's name; the device's ordinal follows, so that an importer knows it.
const NAME_PREFIX: &str = "softcuda-device-";

impl Physical {
    /// Allocates `size_bytes` (rounded up to the granularity) on device `ordinal`.
    pub(crate) fn on_device(ordinal: u32, account: &Arc<Account>, size_bytes: u64) -> Result<Self> {
        let size_bytes = round_up(size_bytes, GRANULARITY_BYTES).ok_or(DeviceError::OutOfMemory)?;
        account.charge(size_bytes)?;
        match create(&format!("{NAME_PREFIX}{ordinal}"), size_bytes) {
            Ok(fd) => Ok(Physical {
                fd,
                size_bytes,
                device: Some(ordinal),
                account: Some(account.clone()),
            }),
            Err(error) => {
                account.refund(size_bytes);
                Err(error)
            }
        }
    }

    /// Something to export that only says which device it is of; charged to nobody.
    pub(crate) fn token(ordinal: u32) -> Result<Self> {
        let fd = create(&format!("{NAME_PREFIX}{ordinal}"), GRANULARITY_BYTES)?;
        Ok(Physical { fd, size_bytes: GRANULARITY_BYTES, device: Some(ordinal), account: None })
    }

    /// Allocates host-resident memory (pinned or managed) in whole pages.
    pub(crate) fn on_host(size_bytes: u64) -> Result<Self> {
        let size_bytes = round_up(size_bytes, rustix::param::page_size() as u64)
            .ok_or(DeviceError::OutOfMemory)?;
        Ok(Physical {
            fd: create("softcuda-host", size_bytes)?,
            size_bytes,
            device: None,
            account: None,
        })
    }

    /// Takes a descriptor that another process exported: it must be a memfd that cannot shrink.
    ///
    /// It is charged to the account that `account_of` gives for its device, as far as this process
    /// has one, unless the account is the whole machine's: there the process that made it is
    /// charged, until nobody holds it. What another user has made is charged to nobody: it may be
    /// named and long as he likes.
    pub(crate) fn import<'a>(
        fd: BorrowedFd<'_>,
        account_of: impl FnOnce(u32) -> Option<&'a Arc<Account>>,
    ) -> Result<Self> {
        const REFUSED: DeviceError =
            DeviceError::InvalidValue("descriptor is no exported allocation");
        let seals = fcntl_get_seals(fd).map_err(|_| REFUSED)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(REFUSED);
        }
        let stat = fstat(fd)?;
        let size_bytes = u64::try_from(stat.st_size).map_err(|_| REFUSED)?;
        let device = device_of(fd);
        let unit = match device {
            Some(_) => GRANULARITY_BYTES,
            None => rustix::param::page_size() as u64,
        };
        if size_bytes == 0 || !size_bytes.is_multiple_of(unit) {
            return Err(REFUSED);
        }
        let is_trusted = stat.st_uid == rustix::process::geteuid().as_raw();
        let account = device.filter(|_| is_trusted).and_then(account_of);
        let fd = match account.is_some_and(|account| account.machine.is_some()) {
            true => holders::hold(fd)?,
            false => rustix::io::fcntl_dupfd_cloexec(fd, 0)?,
        };
        let account = account.filter(|account| account.machine.is_none()).cloned();
        if let Some(account) = &account {
            account.charge(size_bytes)?;
        }
        Ok(Physical { fd, size_bytes, device, account })
    }

    /// A new descriptor of this allocation, for another process.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn device(&self) -> Option<u32> {
        self.device
    }
}

impl AsFd for Physical {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            match account.machine {
                Some(_) => holders::refund(self.fd.as_fd(), account, self.size_bytes),
                None => account.refund(self.size_bytes),
            }
        }
    }
}

fn create(name: &str, size_bytes: u64) -> Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size_bytes)?;
    // An importer maps it: it must never get shorter under a mapping.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// The device that the memfd's name states, if it is one of ours.
fn device_of(fd: BorrowedFd<'_>) -> Option<u32> {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME_PREFIX)?;
    name.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_refuses_more_than_it_has_and_gets_back_what_is_dropped() {
        let account = Arc::new(Account::new(4 << 20));
        let first = Physical::on_device(0, &account, 1).expect("fits");
        assert_eq!(first.size_bytes(), 2 << 20);
        let second = Physical::on_device(0, &account, 2 << 20).expect("fits");
        assert_eq!(Physical::on_device(0, &account, 1).err(), Some(DeviceError::OutOfMemory));
        drop(first);
        assert_eq!(account.free_bytes(), 2 << 20);
        drop(second);
        assert_eq!(account.free_bytes(), 4 << 20);
    }

    #[test]
    fn memory_of_a_machine_is_taken_until_nobody_holds_it() {
        let path = std::env::temp_dir().join(format!("softcuda-holders-{}", std::process::id()));
        let machine = Machine::join(path.to_str().expect("UTF-8")).expect("joins");
        let account = Arc::new(Account::shared(4 << 20, Arc::new(machine), 0));
        let made = Physical::on_device(0, &account, 2 << 20).expect("fits");
        let exported = made.export().expect("exports");
        let held = Physical::import(exported.as_fd(), |_| Some(&account)).expect("imports");
        drop((made, exported));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(account.free_bytes(), 2 << 20, "who imported it holds it");
        drop(held);
        let began = std::time::Instant::now();
        while account.free_bytes() != 4 << 20 {
            assert!(began.elapsed().as_secs() < 60, "it is not refunded");
            std::thread::yield_now();
        }
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn an_import_knows_device_and_size_and_refuses_other_files() {
        let account = Arc::new(Account::new(8 << 20));
        let exported =
            Physical::on_device(3, &account, 2 << 20).expect("fits").export().expect("exports");
        let imported = Physical::import(exported.as_fd(), |_| None).expect("imports");
        assert_eq!((imported.device(), imported.size_bytes()), (Some(3), 2 << 20));
        let plain = memfd_create("other", MemfdFlags::CLOEXEC).expect("memfd");
        assert!(matches!(
            Physical::import(plain.as_fd(), |_| None),
            Err(DeviceError::InvalidValue(_))
        ));
    }
}
