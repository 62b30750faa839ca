//! What the plugin offers: the configuration file (TOML) of the node's administrator. An unknown
//! key is an error.
//!
//! [docs/kubernetes.md](../../../docs/kubernetes.md) explains every key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use link::wire::group_socket::SocketDomain;
use serde::Deserialize;
use settings::Memory as Size;

use crate::ledger::{Memory, Resource, Rules};

/// Kubernetes takes no longer names of resources behind the `/`.
const LONGEST_NAME: usize = 63;
/// Resources that one plugin offers, at most: each has a socket and a connection of its own.
const MAX_RESOURCES: usize = 32;

/// Why a configuration does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, or a key that does not exist.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// What is wrong where.
        source: Box<toml::de::Error>,
    },
    /// A resource.
    #[error("resource {name}: {problem}")]
    Resource {
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Something else.
    #[error("{0}")]
    Value(String),
}

/// What the plugin does.
#[derive(Clone, Debug)]
pub struct Config {
    /// What can be asked for.
    pub resources: Vec<Resource>,
    /// How much of a GPU can be handed out.
    pub rules: Rules,
    /// With whom a container shares an executor.
    pub domain: SocketDomain,
    /// How a container gets the client library.
    pub library: Library,
    /// Where a container finds its socket.
    pub container_socket_directory: String,
    /// Added to each container's environment.
    pub environment: BTreeMap<String, String>,
}

/// How a container gets the client library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Library {
    /// A directory of the host, mounted, and first in `LD_LIBRARY_PATH`.
    Mounted {
        /// On the host.
        host: PathBuf,
        /// In the container.
        container: String,
    },
    /// Devices of a CDI specification, by their qualified names (`openmps cdi` writes one);
    /// kubelets since 1.28.
    Cdi(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    resources: BTreeMap<String, Unit>,
    #[serde(default = "whole")]
    sm_percent_per_gpu: u32,
    #[serde(default = "default_reserve")]
    memory_reserve: String,
    #[serde(default)]
    share: Share,
    #[serde(default)]
    library_directory: Option<PathBuf>,
    #[serde(default)]
    container_library_directory: Option<String>,
    #[serde(default)]
    container_socket_directory: Option<String>,
    #[serde(default)]
    cdi_devices: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Unit {
    #[serde(default)]
    sm_percent: Option<u32>,
    memory: String,
    #[serde(default)]
    most_per_container: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Share {
    Server,
    #[default]
    User,
    Container,
}

fn whole() -> u32 {
    100
}

fn default_reserve() -> String {
    "1G".to_owned()
}

/// Where the DaemonSet puts the libraries on the host.
const LIBRARY_DIRECTORY: &str = "/var/lib/openmps/lib";
const CONTAINER_LIBRARY_DIRECTORY: &str = "/usr/local/openmps/lib";
const CONTAINER_SOCKET_DIRECTORY: &str = "/run/openmps";

/// Offered where the configuration names nothing.
const DEFAULT_RESOURCE: &str = "openmps.dev/sm-percent";

impl Config {
    /// Reads a file; without one, hundredths of GPUs are offered as `openmps.dev/sm-percent`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Self::parse("", Path::new("")) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ConfigError`], with the path in it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|source| ConfigError::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let mut resources = Vec::new();
        for (name, unit) in file.resources {
            resources.push(unit.into_resource(name)?);
        }
        if resources.is_empty() {
            resources.push(Resource {
                name: DEFAULT_RESOURCE.to_owned(),
                sm_percent: Some(1),
                memory: Memory::Percent(1),
                most_per_container: None,
            });
        }
        if resources.len() > MAX_RESOURCES {
            return Err(ConfigError::Value(format!("offer at most {MAX_RESOURCES} resources")));
        }
        if !(1..=1000).contains(&file.sm_percent_per_gpu) {
            return Err(ConfigError::Value(
                "sm-percent-per-gpu: give 1 to 1000; 100 hands out every SM once".to_owned(),
            ));
        }
        let reserve: Size = file
            .memory_reserve
            .parse()
            .map_err(|error| ConfigError::Value(format!("memory-reserve: {error}")))?;
        let absolute = |key: &str, path: String| {
            if path.starts_with('/') {
                Ok(path)
            } else {
                Err(ConfigError::Value(format!("{key}: give an absolute path")))
            }
        };
        let library = if file.cdi_devices.is_empty() {
            let container = file.container_library_directory;
            let container = container.unwrap_or_else(|| CONTAINER_LIBRARY_DIRECTORY.to_owned());
            let container = absolute("container-library-directory", container)?;
            let host = file.library_directory.unwrap_or_else(|| LIBRARY_DIRECTORY.into());
            Library::Mounted { host, container }
        } else if file.library_directory.is_some() || file.container_library_directory.is_some() {
            return Err(ConfigError::Value(
                "give either cdi-devices or library directories: both would put the library into containers".to_owned(),
            ));
        } else {
            Library::Cdi(file.cdi_devices)
        };
        let sockets = file.container_socket_directory;
        let sockets = sockets.unwrap_or_else(|| CONTAINER_SOCKET_DIRECTORY.to_owned());
        Ok(Config {
            resources,
            rules: Rules {
                sm_percent_per_gpu: file.sm_percent_per_gpu,
                memory_reserve_bytes: reserve.bytes(),
            },
            domain: match file.share {
                Share::Server => SocketDomain::Server,
                Share::User => SocketDomain::User,
                Share::Container => SocketDomain::Group,
            },
            library,
            container_socket_directory: absolute("container-socket-directory", sockets)?,
            environment: file.environment,
        })
    }
}

impl Unit {
    fn into_resource(self, name: String) -> Result<Resource, ConfigError> {
        let wrong = |problem: String| ConfigError::Resource { name: name.clone(), problem };
        let fine = |part: &str| {
            !part.is_empty()
                && part.len() <= LONGEST_NAME
                && part
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c))
        };
        match name.split_once('/') {
            Some((domain, rest)) if fine(domain) && domain.contains('.') && fine(rest) => {}
            _ => {
                return Err(wrong(
                    "give a name like openmps.dev/small: a domain, `/`, small letters, digits, `-` and `.`"
                        .to_owned(),
                ));
            }
        }
        if self.sm_percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
            return Err(wrong(
                "sm-percent: give 1 to 100, or leave it out for no limit".to_owned(),
            ));
        }
        if self.most_per_container == Some(0) {
            return Err(wrong("most-per-container: give 1 or more".to_owned()));
        }
        let memory = match self.memory.strip_suffix('%').map(|text| text.trim().parse::<u32>()) {
            Some(Ok(percent)) if (1..=100).contains(&percent) => Memory::Percent(percent),
            Some(_) => return Err(wrong("memory: give 1% to 100%".to_owned())),
            None => {
                let size: Size =
                    self.memory.parse().map_err(|error| wrong(format!("memory: {error}")))?;
                if size.bytes() == 0 {
                    return Err(wrong("memory: give more than nothing".to_owned()));
                }
                Memory::Bytes(size.bytes())
            }
        };
        let Unit { sm_percent, most_per_container, .. } = self;
        Ok(Resource { name, sm_percent, memory, most_per_container })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("test.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_word_hundredths_are_offered() {
        let config = parse("").unwrap();
        assert_eq!(config.resources.len(), 1);
        assert_eq!(config.resources[0].name, "openmps.dev/sm-percent");
        assert_eq!(config.resources[0].memory, Memory::Percent(1));
        assert_eq!(config.domain, SocketDomain::User);
    }

    #[test]
    fn profiles_are_read() {
        let config = parse(
            "share = 'container'\nmemory-reserve = '2G'\n[resources.'openmps.dev/small']\nsm-percent = 25\nmemory = '8G'\nmost-per-container = 1\n[resources.'example.com/memory-gib']\nmemory = '1G'",
        )
        .unwrap();
        let small = config.resources.iter().find(|r| r.name == "openmps.dev/small").unwrap();
        assert_eq!((small.sm_percent, small.memory), (Some(25), Memory::Bytes(8 << 30)));
        assert_eq!(config.rules.memory_reserve_bytes, 2 << 30);
        assert_eq!(config.domain, SocketDomain::Group);
        assert_eq!(config.resources[0].sm_percent, None);
    }

    #[test]
    fn what_is_delivered_and_what_the_guide_shows_is_read() {
        let delivered = include_str!("../../../deploy/kubernetes/base/plugin.toml");
        assert_eq!(parse(delivered).unwrap().resources, parse("").unwrap().resources);
        let guide = include_str!("../../../docs/kubernetes.md");
        let examples: Vec<&str> = guide
            .split("```toml\n")
            .skip(1)
            .map(|rest| rest.split("```").next().unwrap())
            .collect();
        assert!(!examples.is_empty());
        for example in examples {
            let config = parse(example).unwrap();
            assert!(config.resources.len() >= 3, "{example}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("colour = 'red'", "colour"),
            ("[resources.small]\nmemory='1G'", "openmps.dev/small"),
            ("[resources.'a.b/Small']\nmemory='1G'", "small letters"),
            ("[resources.'a.b/c']\nmemory='0'", "more than nothing"),
            ("[resources.'a.b/c']\nmemory='3X'", "3X"),
            ("[resources.'a.b/c']\nmemory='101%'", "100%"),
            ("[resources.'a.b/c']\nmemory='1G'\nsm-percent=101", "1 to 100"),
            ("[resources.'a.b/c']\nsm-percent=10", "memory"),
            ("sm-percent-per-gpu = 0", "1 to 1000"),
            ("container-socket-directory = 'run'", "absolute"),
            ("cdi-devices=['a/b=c']\nlibrary-directory='/x'", "either"),
            ("share = 'nobody'", "nobody"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    /// Of the administrator, and of the kubelet: numbers of units.
    #[test]
    fn mutated_texts_of_the_plugin() {
        let files = [
            include_str!("../../../deploy/kubernetes/base/plugin.toml"),
            "share = 'container'\nmemory-reserve = '2G'\nsm-percent-per-gpu = 200\n[resources.'openmps.dev/small']\nsm-percent = 25\nmemory = '8G'\nmost-per-container = 1\n",
            "cdi-devices = ['openmps.dev/library=all']\n[environment]\nA = 'b'\n[resources.'example.com/memory-gib']\nmemory = '50%'\n",
        ];
        for file in files {
            parse(file).unwrap();
        }
        crate::mutated::fuzz("plugin", &files, |text| {
            let Ok(config) = parse(text) else { return };
            assert!(!config.resources.is_empty());
            assert!(config.container_socket_directory.starts_with('/'));
        });
        let units = ["GPU-12345678-1234-1234-1234-123456789abc::17", "::0"];
        crate::mutated::fuzz("units", &units, |text| {
            let Some((gpu, number)) = crate::ledger::device_gpu(text) else { return };
            assert!(
                text.starts_with(gpu) && crate::ledger::device_id(gpu, number).len() <= text.len()
            );
        });
        let records = [
            r#"{"schema":1,"allocations":[{"id":"a","resource":"openmps.dev/small","gpu":"GPU-1","devices":["GPU-1::0"],"sm_percent_per_unit":25,"memory_bytes_per_unit":1,"lent_at":5}]}"#,
        ];
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(directory.path().join("allocations.json"), text).unwrap();
            crate::records::Records::open(directory.path())
        };
        assert_eq!(read(records[0]).unwrap().1.len(), 1);
        crate::mutated::fuzz("records", &records, |text| drop(read(text)));
    }
}
