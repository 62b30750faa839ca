//! Files of the node: what jobs there are, and a directory for the daemon of each set of GPUs.
//!
//! ```text
//! DIRECTORY/jobs/slurm-1234/job    a Job, as JSON; read by the job's tasks
//! DIRECTORY/jobs/slurm-1234/pipe   CUDA_MPS_PIPE_DIRECTORY of the job: root's, with its group's
//!                                  socket, which is its user's alone
//! DIRECTORY/gpu-0/pipe             that of the daemon of GPU 0, for root alone; gone with the
//!                                  last job
//! DIRECTORY/gpus                   what the driver said of the devices
//! LOGS/gpu-0                       CUDA_MPS_LOG_DIRECTORY of the daemon; stays
//! ```
//!
//! All of it is root's, as is the way to it ([`control::trusted_path`]).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use control::directories::Directories;
use control::trusted_path::{Directory, Missing, Trust};
use link::wire::DAEMON_SOCKET;
use rustix::fs::OFlags;

use super::gpus::Gpus;
use super::{BatchError, Job, file};

/// How long one prolog or epilog waits for another of the same GPU.
const LOCK_LIMIT: Duration = Duration::from_secs(90);
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// The node's directories.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    root: PathBuf,
    logs: PathBuf,
}

/// A set of GPUs that nobody else gives or takes jobs meanwhile.
#[derive(Debug)]
pub(crate) struct Locked {
    /// Where its daemon is.
    pub(crate) directories: Directories,
    directory: PathBuf,
    _lock: File,
}

impl Place {
    /// The node's files under `root`, the daemons' logs under `logs`.
    pub(crate) fn new(root: &Path, logs: &Path) -> Self {
        Place { root: root.to_owned(), logs: logs.to_owned() }
    }

    /// Where the driver's word of the devices is kept.
    pub(crate) fn devices(&self) -> PathBuf {
        self.root.join("gpus")
    }

    /// Where the daemon of these GPUs is.
    pub(crate) fn directories(&self, gpus: &Gpus) -> Directories {
        let (pipe, log) = (self.directory(gpus).join("pipe"), self.logs.join(gpus.key()));
        Directories::from_variables(|name| match name {
            "CUDA_MPS_PIPE_DIRECTORY" => Some(pipe.clone().into()),
            _ => Some(log.clone().into()),
        })
    }

    fn directory(&self, gpus: &Gpus) -> PathBuf {
        self.root.join(gpus.key())
    }

    /// Whether there is a daemon's directory.
    pub(crate) fn is_in_use(&self, gpus: &Gpus) -> bool {
        self.directory(gpus).exists()
    }

    /// Locks these GPUs, making what directories are missing.
    pub(crate) fn lock(&self, gpus: &Gpus) -> Result<Locked, BatchError> {
        let directory = self.directory(gpus);
        let directories = self.directories(gpus);
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            make(&self.root, FOR_ALL, Trust::of_places())?;
            make(&self.root.join("jobs"), FOR_ALL, Trust::of_places())?;
            make(&directory, FOR_OWNER, Trust::of_places())?;
            match try_lock(&directory)? {
                Some(lock) => {
                    make(directories.pipe(), FOR_OWNER, Trust::of_places())?;
                    make(directories.log(), FOR_ALL, Trust::of_logs())?;
                    return Ok(Locked { directories, directory, _lock: lock });
                }
                None if Instant::now() >= deadline => {
                    return Err(BatchError::Busy {
                        path: directory,
                        seconds: LOCK_LIMIT.as_secs(),
                    });
                }
                None => thread::sleep(LOCK_INTERVAL),
            }
        }
    }

    /// The directory of a job, whose name is the batch system's and part of a path.
    fn of_job(&self, name: &str) -> Result<PathBuf, BatchError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.[]".contains(c);
        let is_name = (1..=200).contains(&name.len()) && name.chars().all(plain);
        if !is_name || name.starts_with('.') {
            return Err(BatchError::Name(name.to_owned()));
        }
        Ok(self.root.join("jobs").join(name))
    }

    /// `CUDA_MPS_PIPE_DIRECTORY` of a job.
    pub(crate) fn pipe_of(&self, job: &Job) -> Result<PathBuf, BatchError> {
        Ok(self.of_job(&job.name)?.join("pipe"))
    }

    /// Makes a job's directory and writes what is known of it.
    pub(crate) fn write(&self, job: &Job) -> Result<(), BatchError> {
        let directory = self.of_job(&job.name)?;
        let directory = make(&directory, FOR_ALL, Trust::of_places())?;
        let (path, fresh) = (directory.path().join(JOB), directory.path().join(NEW_JOB));
        let text = serde_json::to_vec(job).map_err(io::Error::other);
        let text = text.map_err(file("write", &path))?;
        // Its tasks see all of it or nothing.
        directory.remove(NEW_JOB)?;
        let mut file_of_job =
            directory.file(NEW_JOB, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o644)?;
        file_of_job
            .write_all(&text)
            .and_then(|()| file_of_job.set_permissions(fs::Permissions::from_mode(0o644)))
            .map_err(file("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(file("write", &path))
    }

    /// Makes the directory of a job's socket, which nobody may enter yet.
    pub(crate) fn make_pipe(&self, job: &Job) -> Result<PathBuf, BatchError> {
        let pipe = self.pipe_of(job)?;
        make(&pipe, FOR_OWNER, Trust::of_places())?;
        Ok(pipe)
    }

    /// Lets a job's user, and nobody else, use the socket that the daemon has made there. The
    /// directory stays root's: in one of the user's own, what root does to the socket by its path
    /// could be done to any file of the system.
    pub(crate) fn open_pipe(&self, job: &Job) -> Result<(), BatchError> {
        let pipe = self.pipe_of(job)?;
        let socket = pipe.join(DAEMON_SOCKET);
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))
            .and_then(|()| chown(&socket, Some(job.uid), None))
            .map_err(file("give to the job's user", &socket))?;
        make(&pipe, FOR_PASSING, Trust::of_places()).map(drop)
    }

    /// What is known of a job; nothing, if it was not admitted.
    pub(crate) fn job(&self, name: &str) -> Result<Option<Job>, BatchError> {
        let path = self.of_job(name)?;
        let opened = Directory::open(&path, Trust::of_places(), Missing::Report)
            .and_then(|directory| directory.file(JOB, OFlags::RDONLY, 0));
        let mut opened = match opened {
            Err(error) if error.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let mut text = Vec::new();
        opened.read_to_end(&mut text).map_err(file("read", &path))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(io::Error::other)
            .map_err(file("understand", &path))
    }

    /// Forgets a job.
    pub(crate) fn remove(&self, name: &str) -> Result<(), BatchError> {
        let path = self.of_job(name)?;
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(file("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// All jobs that share exactly these GPUs.
    pub(crate) fn jobs_on(&self, gpus: &Gpus) -> Result<Vec<Job>, BatchError> {
        let directory = self.root.join("jobs");
        let mut jobs = Vec::new();
        for entry in fs::read_dir(&directory).map_err(file("read", &directory))? {
            let name = entry.map_err(file("read", &directory))?.file_name();
            // Those of other GPUs come and go meanwhile.
            let Some(name) = name.to_str() else { continue };
            jobs.extend(self.job(name)?.filter(|job| job.gpus == *gpus));
        }
        Ok(jobs)
    }
}

impl Locked {
    /// Removes the directory of a daemon that has ended.
    pub(crate) fn remove(self) -> Result<(), BatchError> {
        fs::remove_dir_all(&self.directory).map_err(file("remove", &self.directory))
    }
}

/// The file of a job.
const JOB: &str = "job";
const NEW_JOB: &str = "job.new";

/// Entered by all users, changed by its owner.
const FOR_ALL: u32 = 0o755;
/// Entered by all users who know what is in it, changed by its owner.
const FOR_PASSING: u32 = 0o711;
/// Entered by its owner.
const FOR_OWNER: u32 = 0o700;

/// Makes a directory with this mode, whatever the mask of the batch system's daemon. One that an
/// epilog, which holds the lock, has removed meanwhile is made again: it is not locked yet.
fn make(path: &Path, mode: u32, trust: Trust) -> Result<Directory, BatchError> {
    let deadline = Instant::now() + LOCK_LIMIT;
    let directory = loop {
        match Directory::open(path, trust.clone(), Missing::Make) {
            Err(error) if error.is_not_found() && Instant::now() < deadline => {}
            opened => break opened?,
        }
    };
    directory
        .handle()?
        .set_permissions(fs::Permissions::from_mode(mode))
        .map_err(file("set the mode of", path))?;
    Ok(directory)
}

/// Locks a directory; none while another has it, or has just removed it.
fn try_lock(path: &Path) -> Result<Option<File>, BatchError> {
    let opened = Directory::open(path, Trust::of_places(), Missing::Report);
    let lock = match opened.and_then(|directory| directory.handle()) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(error)) => return Err(file("lock", path)(error)),
    }
    let is_same = |there: &fs::Metadata| -> io::Result<bool> {
        let ours = lock.metadata()?;
        Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    };
    match fs::symlink_metadata(path).and_then(|there| is_same(&there)) {
        Ok(true) => Ok(Some(lock)),
        Ok(false) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file("lock", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, gpus: &str) -> Job {
        Job {
            name: name.into(),
            uid: rustix::process::geteuid().as_raw(),
            gpus: gpus.parse().unwrap(),
            percentage: Some(25.0),
            memory_bytes: Some(1 << 30),
            shards_per_gpu: None,
            refusal: None,
        }
    }

    #[test]
    fn jobs_are_kept_by_their_gpus() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(directory.path(), &directory.path().join("log"));
        let gpus: Gpus = "1".parse().unwrap();
        let locked = place.lock(&gpus).unwrap();
        assert!(locked.directories.pipe().is_dir() && locked.directories.log().is_dir());
        for one in [job("slurm-1", "1"), job("slurm-2", "1"), job("slurm-3", "0")] {
            place.write(&one).unwrap();
        }
        assert_eq!(place.job("slurm-2").unwrap(), Some(job("slurm-2", "1")));
        assert_eq!(place.jobs_on(&gpus).unwrap().len(), 2);
        place.remove("slurm-2").unwrap();
        place.remove("slurm-2").unwrap();
        assert_eq!(place.jobs_on(&gpus).unwrap(), [job("slurm-1", "1")]);
        locked.remove().unwrap();
        assert!(!place.is_in_use(&gpus));
        for name in ["", "../x", ".hidden", "a b"] {
            assert!(place.job(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_jobs_socket_is_its_users_and_the_directory_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(directory.path(), directory.path());
        let job = job("slurm-1", "0");
        let _locked = place.lock(&job.gpus).unwrap();
        place.write(&job).unwrap();
        let pipe = place.make_pipe(&job).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&pipe), 0o700);
        assert!(place.open_pipe(&job).is_err(), "there is no socket");
        let socket = pipe.join(DAEMON_SOCKET);
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        place.open_pipe(&job).unwrap();
        assert_eq!((mode(&pipe), mode(&socket)), (0o711, 0o600));
        let owner = fs::metadata(&pipe).unwrap().uid();
        assert_eq!(owner, rustix::process::geteuid().as_raw());
        // Once more, as by a prolog that is called twice.
        place.make_pipe(&job).unwrap();
        assert_eq!(mode(&pipe), 0o700);
    }

    #[test]
    fn nothing_is_made_in_anothers_directory() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let (theirs, ours) = (directory.path().join("theirs"), directory.path().join("ours"));
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(12345), None).unwrap();
        let gpus: Gpus = "0".parse().unwrap();
        for (root, logs) in [(theirs.join("batch"), &ours), (ours.clone(), &theirs)] {
            let refused = Place::new(&root, logs).lock(&gpus).unwrap_err().to_string();
            assert!(refused.contains("theirs belongs to user 12345"), "{refused}");
            assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
        }
        // A job's file is root's, too.
        let place = Place::new(&ours, &ours);
        place.write(&job("slurm-1", "0")).unwrap();
        chown(ours.join("jobs/slurm-1/job"), Some(12345), None).unwrap();
        assert!(place.job("slurm-1").is_err());
    }

    #[test]
    fn a_lock_is_held_by_one_even_if_its_directory_was_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(directory.path(), directory.path());
        let gpus: Gpus = "0".parse().unwrap();
        let locked = place.lock(&gpus).unwrap();
        let path = directory.path().join("gpu-0");
        assert!(try_lock(&path).unwrap().is_none());
        // One that waits with the old directory open does not get it.
        let waiting = std::thread::spawn(move || place.lock(&gpus).map(|_| ()));
        locked.remove().unwrap();
        waiting.join().unwrap().unwrap();
        assert!(try_lock(&path).unwrap().is_some());
    }
}
