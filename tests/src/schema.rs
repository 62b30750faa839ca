//! Whether a document of JSON is as a schema has it: the part of JSON Schema that
//! `docs/schema.json` uses. What the schema does not have is a fault.

use anyhow::{Result, bail, ensure};
use serde_json::Value;

/// What is wrong with a document of one of the schema's definitions.
///
/// # Errors
/// The first thing that is, and where.
pub fn check(schema: &Value, definition: &str, document: &Value) -> Result<()> {
    let found = &schema["$defs"][definition];
    ensure!(found.is_object(), "{definition} is not in the schema");
    Checker { schema }.check(found, document, definition)
}

struct Checker<'a> {
    schema: &'a Value,
}

impl Checker<'_> {
    fn check(&self, rules: &Value, value: &Value, place: &str) -> Result<()> {
        let Some(rules) = rules.as_object() else { bail!("{place}: no schema: {rules}") };
        for (rule, said) in rules {
            let holds = match rule.as_str() {
                "description" | "properties" | "required" | "additionalProperties" => true,
                "const" => value == said,
                "enum" => said.as_array().is_some_and(|all| all.contains(value)),
                "minimum" => !value.is_number() || value.as_f64() >= said.as_f64(),
                "type" => match said {
                    Value::Array(all) => all.iter().any(|one| is_of(one, value)),
                    one => is_of(one, value),
                },
                "$ref" => {
                    let name = said.as_str().and_then(|said| said.strip_prefix("#/$defs/"));
                    let named = &self.schema["$defs"][name.unwrap_or_default()];
                    self.check(named, value, place)?;
                    true
                }
                "anyOf" => {
                    let mut all = said.as_array().into_iter().flatten();
                    all.any(|one| self.check(one, value, place).is_ok())
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(said, item, &format!("{place}[{index}]"))?;
                    }
                    true
                }
                other => bail!("{place}: the schema has `{other}`, which is not checked"),
            };
            ensure!(holds, "{place}: {value} is not of {rule} {said}");
        }
        let Some(fields) = value.as_object() else { return Ok(()) };
        for name in rules.get("required").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            ensure!(fields.contains_key(name), "{place}: there is no {name}");
        }
        for (name, value) in fields {
            let known = rules.get("properties").and_then(|known| known.get(name));
            let others = rules.get("additionalProperties").filter(|others| others.is_object());
            // A value of anyOf is checked by its part; only objects with rules of their own come
            // here.
            let is_described = rules.contains_key("properties") || others.is_some();
            match known.or(others) {
                Some(rules) => self.check(rules, value, &format!("{place}.{name}"))?,
                None => ensure!(!is_described, "{place}: {name} is not in the schema"),
            }
        }
        Ok(())
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}
