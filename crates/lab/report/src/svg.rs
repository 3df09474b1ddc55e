//! SVG shapes. Colours of lines and text come from the page's style, for light and dark themes.

use std::fmt::Write;

/// A drawing in progress.
#[derive(Debug)]
pub struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

/// Anchor of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Start of the text.
    Start,
    /// Middle of the text.
    Middle,
    /// End of the text.
    End,
}

/// Colours that remain distinct with colour blindness (Okabe and Ito); they repeat after eight.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc4", "#8c8c2f"];

/// How one policy is drawn: its colour, and whether its lines are dashed and its dots hollow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ink {
    /// Colour, also for bars.
    pub colour: &'static str,
    /// Dashed lines and hollow dots, where the colours repeat.
    pub is_dashed: bool,
}

/// The ink of the policy at an index.
pub fn ink(index: usize) -> Ink {
    Ink { colour: COLOURS[index % COLOURS.len()], is_dashed: index / COLOURS.len() % 2 == 1 }
}

impl Drawing {
    /// An empty drawing.
    pub fn new(width: f64, height: f64) -> Drawing {
        Drawing { width, height, body: String::new() }
    }

    /// Adds a thin line in the page's own colour: axes and grids, by class.
    pub fn rule(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.push(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Adds a text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.push(format_args!(
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{text}</text>"#,
            at.0, at.1
        ));
    }

    /// Adds a text that runs upwards.
    pub fn text_up(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y, text) = (at.0, at.1, escaped(text));
        self.push(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})">{text}</text>"#
        ));
    }

    /// Adds a line through points.
    pub fn path(&mut self, ink: Ink, points: &[(f64, f64)]) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = if ink.is_dashed { r#" stroke-dasharray="7 4""# } else { "" };
        self.push(format_args!(
            r#"<polyline fill="none" stroke="{}"{dashes} stroke-width="2.2" stroke-linejoin="round" points="{}"/>"#,
            ink.colour,
            places.join(" ")
        ));
    }

    /// Adds a straight stroke.
    pub fn stroke(&mut self, colour: &str, width: f64, from: (f64, f64), to: (f64, f64)) {
        self.push(format_args!(
            r#"<line stroke="{colour}" stroke-width="{width}" stroke-linecap="round" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Adds a dot with a tooltip.
    pub fn dot(&mut self, ink: Ink, at: (f64, f64), radius: f64, says: &str) {
        let (colour, says) = (ink.colour, escaped(says));
        let fill = if ink.is_dashed { "none" } else { colour };
        self.push(format_args!(
            r#"<circle fill="{fill}" stroke="{colour}" cx="{:.1}" cy="{:.1}" r="{radius}"><title>{says}</title></circle>"#,
            at.0, at.1
        ));
    }

    /// Adds a box with a tooltip.
    pub fn area(&mut self, colour: &str, corner: (f64, f64), size: (f64, f64), says: &str) {
        let says = if says.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(says)) };
        self.push(format_args!(
            r#"<rect fill="{colour}" x="{:.1}" y="{:.1}" width="{:.2}" height="{:.2}">{says}</rect>"#,
            corner.0, corner.1, size.0, size.1
        ));
    }

    /// Returns the drawing as an element of a page, with an accessible name.
    pub fn finish(self, name: &str) -> String {
        let (width, height, name, body) = (self.width, self.height, escaped(name), self.body);
        // Text is at most a fifth larger than drawn, however wide the page is.
        let widest = width * 1.2;
        format!(
            r#"<svg viewBox="0 0 {width} {height}" style="max-width:{widest:.0}px" role="img" aria-label="{name}">{body}</svg>"#
        )
    }

    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        self.body.write_fmt(shape).expect("writing to a string cannot fail");
    }
}

/// Escapes text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colour from cold to hot, for shares from 0 to 1.
pub fn heat(share: f64) -> String {
    // Viridis at five stops.
    const STOPS: [(f64, f64, f64); 5] = [
        (68.0, 1.0, 84.0),
        (59.0, 82.0, 139.0),
        (33.0, 145.0, 140.0),
        (94.0, 201.0, 98.0),
        (253.0, 231.0, 37.0),
    ];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let low = (place.floor() as usize).min(STOPS.len() - 2);
    let (one, other, part) = (STOPS[low], STOPS[low + 1], place - low as f64);
    let between = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    let (red, green, blue) = (between(one.0, other.0), between(one.1, other.1), between(one.2, other.2));
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let mut drawing = Drawing::new(10.0, 10.0);
        drawing.dot(ink(8), (1.0, 1.0), 2.0, "</title><script>");
        assert!(!drawing.finish("a \"b\"").contains("<script>"));
    }

    #[test]
    fn sixteen_policies_look_different() {
        let inks: Vec<Ink> = (0..16).map(ink).collect();
        assert!(inks.iter().enumerate().all(|(at, one)| !inks[..at].contains(one)));
    }

    #[test]
    fn heat_goes_from_cold_to_hot() {
        assert_eq!(
            [heat(0.0), heat(0.5), heat(1.0), heat(7.0)],
            ["#440154", "#21918c", "#fde725", "#fde725"]
        );
    }
}
