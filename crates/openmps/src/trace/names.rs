//! Names of kernels as people write them.

/// The name in a C++ symbol, without parameters and template arguments: `_ZN2ns3fooIiEEvPT_` is
/// `ns::foo`. What is no such symbol stays as it is.
pub(crate) fn plain(symbol: &str) -> String {
    let Some(rest) = symbol.strip_prefix("_Z") else { return symbol.to_owned() };
    let (nested, mut rest) = match rest.strip_prefix('N') {
        Some(rest) => (true, rest.trim_start_matches(['K', 'V'])),
        None => (false, rest.strip_prefix('L').unwrap_or(rest)),
    };
    let mut parts: Vec<&str> = Vec::new();
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let part = rest[..digits]
            .parse()
            .ok()
            .and_then(|length: usize| rest.get(digits..digits.checked_add(length)?));
        let Some(part) = part else { break };
        // Every anonymous namespace is called alike.
        parts.push(if part.starts_with("_GLOBAL__N_") { "(anonymous)" } else { part });
        rest = &rest[digits + part.len()..];
        if part.starts_with("_INTERNAL_") {
            parts.pop();
        }
        if !nested {
            break;
        }
    }
    if parts.is_empty() { symbol.to_owned() } else { parts.join("::") }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn symbols_become_names() {
        for (symbol, name) in [
            ("_Z10vector_addPKfS0_Pfi", "vector_add"),
            ("_ZN2ns3fooIiEEvPT_", "ns::foo"),
            ("_ZN12_GLOBAL__N_16kernelEv", "(anonymous)::kernel"),
            ("_ZL6hiddenv", "hidden"),
            ("plain_c", "plain_c"),
            ("_Z999short", "_Z999short"),
            ("_ZN99999999999999999999x", "_ZN99999999999999999999x"),
            ("_Z", "_Z"),
            ("", ""),
        ] {
            assert_eq!(plain(symbol), name, "{symbol}");
        }
    }
}
