//! Colours, bars and lines of the screen.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

/// Whether the screen has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Palette {
    Colours,
    /// As the user has asked for: see <https://no-color.org>.
    None,
}

/// What a part of the screen means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Soft,
    Good,
    Warning,
    Bad,
    /// GPU time.
    Busy,
    /// Memory.
    Memory,
}

impl Palette {
    /// What the environment asks for.
    pub(super) fn from_environment() -> Self {
        match std::env::var_os("NO_COLOR") {
            Some(value) if !value.is_empty() => Self::None,
            _ => Self::Colours,
        }
    }

    pub(super) fn style(self, tone: Tone) -> Style {
        let colour = match (self, tone) {
            (_, Tone::Plain) | (Self::None, _) => return Style::default(),
            (Self::Colours, Tone::Soft) => Color::DarkGray,
            (Self::Colours, Tone::Good) => Color::Green,
            (Self::Colours, Tone::Warning) => Color::Yellow,
            (Self::Colours, Tone::Bad) => Color::Red,
            (Self::Colours, Tone::Busy) => Color::Cyan,
            (Self::Colours, Tone::Memory) => Color::Magenta,
        };
        Style::default().fg(colour)
    }

    pub(super) fn span(self, text: impl Into<String>, tone: Tone) -> Span<'static> {
        Span::styled(text.into(), self.style(tone))
    }

    /// A bar of this width of which so much is full, 0 to 1.
    pub(super) fn bar(self, width: usize, full: f64, tone: Tone) -> Vec<Span<'static>> {
        let eighths = (full.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
        let mut filled = "█".repeat(eighths / 8);
        filled.extend((eighths % 8).checked_sub(1).map(|part| PARTS_OF_A_BAR[part]));
        // What there is little of is seen to be there.
        if filled.is_empty() && full > 0.0 && width > 0 {
            filled.push(PARTS_OF_A_BAR[0]);
        }
        let empty = "·".repeat(width - filled.chars().count());
        vec![self.span(filled, tone), self.span(empty, Tone::Soft)]
    }

    /// A line of levels from 0 to `most`; spaces where nothing is known.
    pub(super) fn levels(self, values: &[Option<f64>], most: f64, tone: Tone) -> Span<'static> {
        let level = |value: &Option<f64>| match value {
            None => ' ',
            Some(value) => {
                let level = (value / most).clamp(0.0, 1.0) * (LEVELS.len() - 1) as f64;
                LEVELS[level.round() as usize]
            }
        };
        self.span(values.iter().map(level).collect::<String>(), tone)
    }
}

/// Of a cell at the end of a bar.
const PARTS_OF_A_BAR: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn bold() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(full: f64) -> String {
        let spans = Palette::None.bar(4, full, Tone::Busy);
        spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_part_is_large() {
        let wanted = [(0.0, "····"), (1e-9, "▏···"), (0.5, "██··"), (0.6, "██▍·"), (1.0, "████")];
        for (full, drawn) in wanted {
            assert_eq!(bar(full), drawn, "{full}");
        }
        assert_eq!([bar(7.0), bar(f64::NAN)], ["████", "····"]);
    }

    #[test]
    fn levels_go_from_nothing_to_the_most() {
        let values = [None, Some(0.0), Some(50.0), Some(100.0), Some(500.0)];
        let line = Palette::None.levels(&values, 100.0, Tone::Busy);
        assert_eq!(line.content, " ▁▅██");
        assert_eq!(line.style, Style::default());
    }
}
