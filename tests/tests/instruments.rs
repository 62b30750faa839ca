//! What the tests of this folder look through: traces, schemas, screens.

use openmps_tests::schema::check;
use openmps_tests::terminal::Screen;
use openmps_tests::trace::Trace;
use serde_json::json;

fn verdict(events: &str) -> Result<usize, String> {
    let text = format!("{{\"traceEvents\":[{events}]}}");
    Trace::parse(text.as_bytes()).map(|trace| trace.events.len()).map_err(|e| format!("{e:#}"))
}

const OUTER: &str = r#"{"ph":"X","name":"a","cat":"c","pid":1,"tid":1,"ts":1.5,"dur":4}"#;
const ARROW: &str = r#"{"ph":"s","name":"l","cat":"c","id":1,"pid":1,"tid":1,"ts":2}"#;

#[test]
fn what_is_right_passes() {
    let end = r#"{"ph":"f","bp":"e","name":"l","cat":"c","id":1,"pid":1,"tid":1,"ts":3}"#;
    assert_eq!(verdict(&format!("{OUTER},{ARROW},{end}")), Ok(3));
    assert_eq!(verdict(""), Ok(0));
}

#[test]
fn what_is_wrong_does_not() {
    for (events, complaint) in [
        (r#"{"ph":"X","name":"a","cat":"c","pid":1,"tid":1,"ts":1}"#.to_owned(), "dur"),
        (r#"{"ph":"X","name":"a","cat":"c","pid":1,"ts":1,"dur":1}"#.to_owned(), "tid"),
        (OUTER.replace("4}", "-4}"), "dur is"),
        (r#"{"ph":"Q","name":"a","pid":1,"tid":1}"#.to_owned(), "phase"),
        (format!("{OUTER},{}", OUTER.replace("1.5", "3")), "cross"),
        (r#"{"ph":"B","name":"a","pid":1,"tid":1,"ts":1}"#.to_owned(), "never end"),
        (r#"{"ph":"E","name":"a","pid":1,"tid":1,"ts":1}"#.to_owned(), "an end of nothing"),
        (format!("{OUTER},{ARROW}"), "1 events of one arrow"),
        (
            format!("{OUTER},{ARROW},{}", ARROW.replace("\"s\"", "\"f\"").replace(":2}", ":9}")),
            "in no slice",
        ),
    ] {
        let found = verdict(&events).expect_err(&events);
        assert!(found.contains(complaint), "{events}: {found}");
    }
}

#[test]
fn what_is_not_as_the_schema_has_it_is_found() {
    let schema = json!({"$defs": {
        "word": {"enum": ["a", "b"]},
        "thing": {
            "type": "object", "required": ["n"], "additionalProperties": false,
            "properties": {
                "n": {"type": "integer", "minimum": 0},
                "w": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
                "all": {"type": "array", "items": {"type": "string"}}
            }
        }
    }});
    let right =
        [json!({"n": 1}), json!({"n": 0, "w": "b", "all": ["x"]}), json!({"n": 2, "w": null})];
    for document in right {
        check(&schema, "thing", &document).unwrap();
    }
    let wrong = [
        json!({}),
        json!([]),
        json!({"n": -1}),
        json!({"n": "1"}),
        json!({"n": 1, "w": "c"}),
        json!({"n": 1, "all": [1]}),
        json!({"n": 1, "more": 1}),
    ];
    for document in wrong {
        assert!(check(&schema, "thing", &document).is_err(), "{document}");
    }
    assert!(check(&schema, "nothing", &json!({})).is_err());
}

#[test]
fn a_screen_shows_what_was_written_where() {
    let mut screen = Screen::new(6, 2);
    let text = "\u{1b}[2J\u{1b}[2;3Hä█\u{1b}[38;5;1mx\u{1b}[1;1Ho\r\nk";
    for byte in text.bytes() {
        screen.take(&[byte]);
    }
    assert_eq!(screen.text(), "o\nk ä█x\n");
    assert_eq!(screen.written, text);
    screen.take(b"\x1b[2J");
    assert_eq!(screen.text(), "\n\n");
}
