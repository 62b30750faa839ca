//! JSON values as YAML in block style. Strings are written as JSON writes them, which is YAML too,
//! so that none is mistaken for a number or a truth value.

use serde_json::Value;

/// The document, with a newline at its end.
pub(super) fn document(value: &Value) -> String {
    let mut text = String::from("---\n");
    write(&mut text, value, 0);
    text
}

/// Writes a value whose first line is already indented.
fn write(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (name, field)) in fields.iter().enumerate() {
                indent(text, if index == 0 { 0 } else { depth });
                text.push_str(name);
                text.push(':');
                write_after(text, field, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                indent(text, if index == 0 { 0 } else { depth });
                text.push_str("- ");
                write(text, item, depth + 1);
            }
        }
        scalar => {
            text.push_str(&scalar.to_string());
            text.push('\n');
        }
    }
}

/// A field's value: on the same line if it is a scalar.
fn write_after(text: &mut String, value: &Value, depth: usize) {
    let is_block = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_block {
        text.push('\n');
        indent(text, depth);
    } else {
        text.push(' ');
    }
    write(text, value, depth);
}

fn indent(text: &mut String, depth: usize) {
    text.push_str(&"  ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_nest_and_strings_stay_strings() {
        let value = serde_json::json!({
            "version": "0.3", "list": [{"a": "x: y", "b": ["no", 1]}, {"c": {}}], "last": {"d": null}
        });
        let expected = "---\nlast:\n  d: null\nlist:\n  - a: \"x: y\"\n    b:\n      - \"no\"\n      - 1\n  - c: {}\nversion: \"0.3\"\n";
        assert_eq!(document(&value), expected);
    }
}
