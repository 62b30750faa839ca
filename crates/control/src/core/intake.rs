//! What a server says, as the daemon takes it in: the one place where its words become the daemon's.
//!
//! A server runs as its user, who can make it say anything. Here its messages are put together, its texts cleaned and cut, its lists bounded;
//! who its clients are is [`super::clients`]' to say.

use link::pieces::{Assembly, Piece, PieceError};
use link::wire::daemon::{
    CONTEXTS_LISTED_OF_CLIENT, ClientSnapshot, DEPARTED_KEPT, LAUNCH_BOUNDS_US,
    MAX_SERVER_MESSAGE_BYTES, ServerSnapshot, ToDaemon,
};
use link::wire::fault::{ACCUSED_KEPT, CALLS_KEPT, FAULTS_KEPT};
use link::{is_printable, printable_prefix};
use serde_json::Value;

/// Longest text, in characters: a reason with the name of a kernel in it.
const LONGEST_TEXT: usize = 2048;
/// Devices of a server, partitions counted as such.
const MOST_DEVICES: usize = 128;
/// Groups, reservations and domains of a device: each has a client or an administrator's word.
const MOST_OF_DEVICE: usize = 2048;

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
    pub fn take(&mut self, packet: Value) -> Result<Option<ToDaemon>, IntakeError> {
        #[derive(serde::Deserialize)]
        struct InPieces {
            piece: Piece,
        }
        if packet.get("piece").is_none() {
            return understood(packet).map(Some);
        }
        let InPieces { piece } = serde_json::from_value(packet)?;
        let whole = self.assembly.add(piece)?;
        whole.map(|text| understood(serde_json::from_str(&text)?)).transpose()
    }
}

fn understood(mut words: Value) -> Result<ToDaemon, IntakeError> {
    clean(&mut words);
    let mut message = serde_json::from_value(words)?;
    match &mut message {
        ToDaemon::Snapshot { snapshot, .. } => bound(snapshot),
        ToDaemon::Changed { report, .. } => report.refused.truncate(MOST_OF_DEVICE),
        _ => {}
    }
    Ok(message)
}

/// Cleans every text in it, whatever it is for.
fn clean(words: &mut Value) {
    match words {
        Value::String(text) => {
            if text.len() > LONGEST_TEXT || !text.chars().all(is_printable) {
                *text = printable_prefix(text, LONGEST_TEXT);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// No list is longer than an honest server's.
fn bound(snapshot: &mut ServerSnapshot) {
    snapshot.devices.truncate(MOST_DEVICES);
    for device in &mut snapshot.devices {
        device.domains.truncate(MOST_OF_DEVICE);
        device.groups.truncate(MOST_OF_DEVICE);
        device.reservations.truncate(MOST_OF_DEVICE);
        device.launch_counts.truncate(LAUNCH_BOUNDS_US.len() + 1);
    }
    snapshot.departed.truncate(DEPARTED_KEPT);
    snapshot.clients.iter_mut().chain(&mut snapshot.departed).for_each(bound_client);
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
    client.contexts.truncate(CONTEXTS_LISTED_OF_CLIENT);
    client.devices.truncate(MOST_DEVICES);
    for device in &mut client.devices {
        device.launch_counts.truncate(LAUNCH_BOUNDS_US.len() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::MAX_PACKET_BYTES;
    use link::wire::daemon::DeviceSnapshot;

    fn taken(message: &ToDaemon) -> ToDaemon {
        let packet = serde_json::to_value(message).unwrap();
        Intake::default().take(packet).unwrap().unwrap()
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
        assert_eq!((device.name.as_str(), device.uuid.len()), ("a]0;xb", LONGEST_TEXT));
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
            let packet = serde_json::to_value(ToDaemon::Piece(piece)).unwrap();
            whole = intake.take(packet).unwrap();
        }
        let Some(ToDaemon::Snapshot { id: 7, snapshot }) = whole else { panic!("{whole:?}") };
        assert_eq!(snapshot.departed.len(), 200);
        assert_eq!(snapshot.departed[0].command, "x".repeat(1000));
        let odd = Piece { offset: 5, text: "x".into(), more: true };
        assert!(intake.take(serde_json::to_value(ToDaemon::Piece(odd)).unwrap()).is_err());
        let nested = ToDaemon::Piece(Piece { offset: 0, text: r#""ready""#.into(), more: false });
        let nested = serde_json::to_string(&nested).unwrap();
        let outer = ToDaemon::Piece(Piece { offset: 0, text: nested, more: false });
        let message = intake.take(serde_json::to_value(outer).unwrap());
        assert!(matches!(message, Ok(Some(ToDaemon::Piece(_)))), "not followed: {message:?}");
    }
}
