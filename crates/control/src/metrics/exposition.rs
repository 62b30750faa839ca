//! How metrics are written: Prometheus' text format and OpenMetrics, which differ in the names of
//! families and in the end.

use std::fmt::{Display, Write};

/// A format of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format 0.0.4, which every tool reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// For the HTTP header.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its samples end in `_total`.
    Counter,
    /// Counts by class.
    Histogram,
    /// Always 1, for its labels; its sample ends in `_info`.
    Info,
}

/// Names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A scrape that is being written.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub(super) fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Begins a family; its name is without the end that its kind has. Families have different
    /// names.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let end = match kind {
            Kind::Gauge | Kind::Histogram => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        let (family_end, kind_name) = match (self.format, kind) {
            (_, Kind::Gauge) => ("", "gauge"),
            (_, Kind::Histogram) => ("", "histogram"),
            (Format::Text, Kind::Counter) => (end, "counter"),
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (Format::Text, Kind::Info) => (end, "gauge"),
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
        };
        let text = &mut self.text;
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "# HELP {name}{family_end} {help}.");
        let _ = writeln!(text, "# TYPE {name}{family_end} {kind_name}");
        Family { text, name: format!("{name}{end}") }
    }

    /// The text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Samples of one family.
#[derive(Debug)]
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Family<'_> {
    /// One sample. Within a family all have different labels.
    pub(super) fn sample(&mut self, labels: &Labels, value: f64) {
        self.write("", labels, None, value);
    }

    /// A histogram: upper bounds of the classes, and how many there are in each class; one more
    /// class is beyond the last bound. Classes at the end that are not given are empty.
    pub(super) fn histogram(&mut self, labels: &Labels, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut below = 0u64;
        for (class, bound) in bounds.iter().enumerate() {
            below = below.saturating_add(counts.get(class).copied().unwrap_or(0));
            self.write("_bucket", labels, Some(&bound.to_string()), below);
        }
        let all = below.saturating_add(counts.get(bounds.len()).copied().unwrap_or(0));
        self.write("_bucket", labels, Some("+Inf"), all);
        self.write("_count", labels, None, all);
        self.write("_sum", labels, None, sum);
    }

    fn write(&mut self, end: &str, labels: &Labels, bound: Option<&str>, value: impl Display) {
        let text = &mut *self.text;
        let _ = write!(text, "{}{end}", self.name);
        let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
        let mut before = '{';
        for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(text, "{before}{name}=\"");
            escape(text, value);
            text.push('"');
            before = ',';
        }
        let close = if before == ',' { "}" } else { "" };
        let _ = writeln!(text, "{close} {value}");
    }
}

fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let mut page = Exposition::new(format);
        page.family("a_bytes", Kind::Gauge, "A").sample(&vec![], 1.5);
        page.family("b", Kind::Counter, "B").sample(&vec![("x", "q\"\\\n".to_owned())], 7.0);
        page.family("c", Kind::Info, "C").sample(&vec![("y", String::new())], 1.0);
        let labels = vec![("z", "1".to_owned())];
        page.family("d_seconds", Kind::Histogram, "D").histogram(&labels, &[0.1, 2.0], &[3], 0.2);
        page.finish()
    }

    #[test]
    fn both_formats_name_families_as_they_must() {
        let samples = [
            "a_bytes 1.5\n",
            "b_total{x=\"q\\\"\\\\\\n\"} 7\n",
            "c_info{y=\"\"} 1\n",
            "d_seconds_bucket{z=\"1\",le=\"0.1\"} 3\nd_seconds_bucket{z=\"1\",le=\"2\"} 3\n\
             d_seconds_bucket{z=\"1\",le=\"+Inf\"} 3\nd_seconds_count{z=\"1\"} 3\n\
             d_seconds_sum{z=\"1\"} 0.2\n",
        ];
        let [a, b, c, d] = samples;
        assert_eq!(
            written(Format::Text),
            format!(
                "# HELP a_bytes A.\n# TYPE a_bytes gauge\n{a}\
                 # HELP b_total B.\n# TYPE b_total counter\n{b}\
                 # HELP c_info C.\n# TYPE c_info gauge\n{c}\
                 # HELP d_seconds D.\n# TYPE d_seconds histogram\n{d}"
            )
        );
        assert_eq!(
            written(Format::OpenMetrics),
            format!(
                "# HELP a_bytes A.\n# TYPE a_bytes gauge\n{a}# HELP b B.\n# TYPE b counter\n{b}\
                 # HELP c C.\n# TYPE c info\n{c}# HELP d_seconds D.\n# TYPE d_seconds histogram\n{d}# EOF\n"
            )
        );
    }

    #[test]
    fn a_histogram_ends_in_infinity_whatever_was_counted() {
        for counts in [&[][..], &[1], &[1, 2, 4], &[u64::MAX, 1, 1]] {
            let mut page = Exposition::new(Format::Text);
            page.family("d", Kind::Histogram, "D").histogram(&vec![], &[1.0, 2.0], counts, 0.0);
            let text = page.finish();
            let all = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
            assert!(text.contains(&format!("d_bucket{{le=\"+Inf\"}} {all}\n")), "{text}");
            assert!(text.contains(&format!("d_count {all}\n")), "{text}");
        }
    }
}
