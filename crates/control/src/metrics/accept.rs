//! Which format a scraper wants: the header `Accept`.

use super::exposition::Format;
use crate::http::Request;

/// OpenMetrics for who prefers it to plain text; Prometheus' text format for everybody else, as for
/// who does not say.
pub(super) fn format(request: &Request<'_>) -> Format {
    let values = request.header("accept");
    let (mut open_metrics, mut plain) = (0.0, 0.0);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0);
        let best = match kind.as_str() {
            "application/openmetrics-text" => &mut open_metrics,
            "text/plain" | "text/*" => &mut plain,
            _ => continue,
        };
        *best = f64::max(*best, weight);
    }
    if open_metrics > 0.0 && open_metrics >= plain { Format::OpenMetrics } else { Format::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_what_it_prefers() {
        let of = |accept: &str| {
            let request = format!("GET / HTTP/1.1\r\n{accept}\r\n\r\n");
            format(&Request::read(request.as_bytes()).unwrap())
        };
        let prometheus = "Accept: application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), Format::OpenMetrics);
        assert_eq!(of("accept:application/openmetrics-text"), Format::OpenMetrics);
        for text in [
            "Host: a",
            "Accept: */*",
            "Accept: text/plain",
            "Accept: text/plain, application/openmetrics-text;q=0.5",
            "Accept: application/openmetrics-text;q=0",
            "X: application/openmetrics-text",
        ] {
            assert_eq!(of(text), Format::Text, "{text}");
        }
    }
}
