//! What a server says, as the daemon takes it in: the one place where its words become the
//! daemon's.
//!
//! A server runs as its user, who can make it say anything. Here its messages are put together, its
//! texts cleaned and cut ([`super::cleaning`]), its lists bounded; who its clients are is
//! [`super::clients`]' to say.

use link::pieces::{Assembly, Piece, PieceError};
use link::wire::daemon::{
    CONTEXTS_LISTED, CONTEXTS_LISTED_OF_CLIENT, ClientSnapshot, DEPARTED_KEPT, LAUNCH_BOUNDS_US,
    LAUNCHES_LISTED_OF_CLIENT, MAX_SERVER_MESSAGE_BYTES, ServerSnapshot, ToDaemon,
};
use link::wire::fault::{ACCUSED_KEPT, CALLS_KEPT, FAULTS_KEPT};
use link::wire::shares::MAX_RESERVATIONS;
use serde::Deserialize;

use super::cleaning::Clean;

/// Devices of a server, partitions counted as such.
const MOST_DEVICES: usize = 128;
/// Groups and domains of a device: each has a client.
const MOST_OF_DEVICE: usize = 2048;
/// Longest name of a device and of its place. Each series of a device has them, so they are many
/// times as long in a page of metrics.
const LONGEST_NAME: usize = 64;

/// Why a server is not understood: it sends what no server sends.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// No message.
    #[error("a message is not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    /// No pieces of one.
    #[error(transparent)]
    Piece(#[from] PieceError),
}

/// The messages of one server.
#[derive(Debug)]
pub struct Intake {
    assembly: Assembly,
}

impl Default for Intake {
    fn default() -> Self {
        Self { assembly: Assembly::new(MAX_SERVER_MESSAGE_BYTES) }
    }
}

impl Intake {
    /// Takes a packet; a message, once it is complete.
    ///
    /// # Errors
    /// [`IntakeError`].
    pub fn take(&mut self, packet: &[u8]) -> Result<Option<ToDaemon>, IntakeError> {
        // Anything else is told by its first word.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct InPieces {
            piece: Piece,
        }
        let Ok(InPieces { piece }) = serde_json::from_slice(packet) else {
            return understood(packet).map(Some);
        };
        let whole = self.assembly.add(piece)?;
        whole.map(|text| understood(text.as_bytes())).transpose()
    }
}

fn understood(words: &[u8]) -> Result<ToDaemon, IntakeError> {
    let mut words = serde_json::Deserializer::from_slice(words);
    let mut message = ToDaemon::deserialize(Clean(&mut words))?;
    words.end()?;
    match &mut message {
        ToDaemon::Snapshot { snapshot, .. } => bound(snapshot),
        ToDaemon::Changed { report, .. } => report.refused.truncate(MOST_OF_DEVICE),
        _ => {}
    }
    Ok(message)
}

/// No list is longer than an honest server's.
fn bound(snapshot: &mut ServerSnapshot) {
    snapshot.devices.truncate(MOST_DEVICES);
    for device in &mut snapshot.devices {
        device.domains.truncate(MOST_OF_DEVICE);
        device.groups.truncate(MOST_OF_DEVICE);
        device.reservations.truncate(MAX_RESERVATIONS);
        for name in [&mut device.uuid, &mut device.pci_bus_id] {
            if let Some((end, _)) = name.char_indices().nth(LONGEST_NAME) {
                name.truncate(end);
            }
        }
        device.launch_counts.truncate(LAUNCH_BOUNDS_US.len() + 1);
    }
    snapshot.departed.truncate(DEPARTED_KEPT);
    let mut room = CONTEXTS_LISTED;
    for client in snapshot.clients.iter_mut().chain(&mut snapshot.departed) {
        client.contexts.truncate(room.min(CONTEXTS_LISTED_OF_CLIENT));
        room -= client.contexts.len();
        bound_client(client);
    }
    snapshot.faults.truncate(FAULTS_KEPT);
    for accused in snapshot.faults.iter_mut().flat_map(|fault| {
        fault.accused.truncate(ACCUSED_KEPT);
        &mut fault.accused
    }) {
        accused.in_flight.truncate(CALLS_KEPT);
        accused.last_calls.truncate(CALLS_KEPT);
    }
}

fn bound_client(client: &mut ClientSnapshot) {
    client.devices.truncate(MOST_DEVICES);
    for device in &mut client.devices {
        device.launch_counts.truncate(LAUNCH_BOUNDS_US.len() + 1);
        device.launches.truncate(LAUNCHES_LISTED_OF_CLIENT);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cleaning::{LONGEST_LIST, LONGEST_TEXT};
    use super::*;
    use link::wire::MAX_PACKET_BYTES;
    use link::wire::daemon::DeviceSnapshot;

    fn taken(message: &ToDaemon) -> ToDaemon {
        let packet = serde_json::to_vec(message).unwrap();
        Intake::default().take(&packet).unwrap().unwrap()
    }

    #[test]
    fn no_text_of_a_server_commands_a_terminal() {
        let evil = "a\u{1b}]0;x\u{7}\n\u{202e}b";
        let ToDaemon::Failed { message } = taken(&ToDaemon::Failed { message: evil.into() }) else {
            panic!("another message");
        };
        assert_eq!(message, "a]0;xb");
        let device = DeviceSnapshot {
            name: evil.into(),
            uuid: "x".repeat(LONGEST_TEXT + 1),
            pci_bus_id: "0000:00:06.0".into(),
            ..Default::default()
        };
        let snapshot =
            ServerSnapshot { devices: vec![device; MOST_DEVICES + 1], ..Default::default() };
        let ToDaemon::Snapshot { snapshot, .. } = taken(&ToDaemon::Snapshot { id: 1, snapshot })
        else {
            panic!("another message");
        };
        assert_eq!(snapshot.devices.len(), MOST_DEVICES);
        let device = &snapshot.devices[0];
        assert_eq!((device.name.as_str(), device.uuid.len()), ("a]0;xb", LONGEST_NAME));
        assert_eq!(device.pci_bus_id, "0000:00:06.0");
    }

    #[test]
    fn long_messages_come_in_pieces_and_are_cleaned_too() {
        let departed =
            vec![ClientSnapshot { command: "x\u{1b}".repeat(1000), ..Default::default() }; 200];
        let snapshot = ServerSnapshot { departed, ..Default::default() };
        let text = serde_json::to_string(&ToDaemon::Snapshot { id: 7, snapshot }).unwrap();
        assert!(text.len() > 2 * MAX_PACKET_BYTES);
        let mut intake = Intake::default();
        let mut whole = None;
        for piece in Piece::all(&text) {
            let packet = serde_json::to_vec(&ToDaemon::Piece(piece)).unwrap();
            whole = intake.take(&packet).unwrap();
        }
        let Some(ToDaemon::Snapshot { id: 7, snapshot }) = whole else { panic!("{whole:?}") };
        assert_eq!(snapshot.departed.len(), 200);
        assert_eq!(snapshot.departed[0].command, "x".repeat(1000));
        let odd = Piece { offset: 5, text: "x".into(), more: true };
        assert!(intake.take(&serde_json::to_vec(&ToDaemon::Piece(odd)).unwrap()).is_err());
        let nested = ToDaemon::Piece(Piece { offset: 0, text: r#""ready""#.into(), more: false });
        let nested = serde_json::to_string(&nested).unwrap();
        let outer = ToDaemon::Piece(Piece { offset: 0, text: nested, more: false });
        let message = intake.take(&serde_json::to_vec(&outer).unwrap());
        assert!(matches!(message, Ok(Some(ToDaemon::Piece(_)))), "not followed: {message:?}");
    }

    #[test]
    fn all_clients_together_have_no_more_contexts_than_are_listed() {
        let contexts = vec![Default::default(); CONTEXTS_LISTED_OF_CLIENT];
        let client = ClientSnapshot { contexts, ..Default::default() };
        let mut snapshot = ServerSnapshot {
            clients: vec![client.clone(); 1024],
            departed: vec![client; DEPARTED_KEPT],
            ..Default::default()
        };
        bound(&mut snapshot);
        let listed = |clients: &[ClientSnapshot]| {
            clients.iter().map(|client| client.contexts.len()).sum::<usize>()
        };
        assert_eq!(listed(&snapshot.clients), 16_384);
        assert_eq!(listed(&snapshot.departed), 0);
    }

    #[test]
    fn what_is_in_many_series_is_short() {
        let reservation = Default::default();
        let device = DeviceSnapshot {
            uuid: "é".repeat(LONGEST_TEXT),
            reservations: vec![reservation; MAX_RESERVATIONS + 1],
            ..Default::default()
        };
        let mut snapshot = ServerSnapshot { devices: vec![device], ..Default::default() };
        bound(&mut snapshot);
        let device = &snapshot.devices[0];
        assert_eq!(device.uuid.chars().count(), LONGEST_NAME);
        assert_eq!(device.reservations.len(), MAX_RESERVATIONS);
    }

    #[test]
    fn no_list_is_longer_than_an_honest_one() {
        let client_ids = (0..2 * LONGEST_LIST as u64).collect();
        let ToDaemon::Left { client_ids } = taken(&ToDaemon::Left { client_ids }) else {
            panic!("another message");
        };
        assert_eq!(client_ids, (0..LONGEST_LIST as u64).collect::<Vec<_>>());
        // What nobody asked for is passed over, however much it is.
        let junk = "[[],{\"a\":1},0.5,null],".repeat(1000);
        let text = format!(
            r#"{{"snapshot": {{"junk": [{junk}0], "id": 3, "snapshot":
            {{"devices": [], "clients": [], "clients_ever": 7}}}}}}"#
        );
        let taken = Intake::default().take(text.as_bytes()).unwrap();
        assert!(
            matches!(taken, Some(ToDaemon::Snapshot { id: 3, snapshot }) if snapshot.clients_ever == 7)
        );
        for wrong in ["", "{}", "\"ready\" 1", "[\"ready\"]", r#"{"left": {"client_ids": ["1"]}}"#]
        {
            assert!(Intake::default().take(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
