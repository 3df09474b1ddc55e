//! The live view: the table, requests per second, hits and the last decisions, read again at an interval.
//!
//! Reading and keys arrive as messages, so a gateway that does not answer does not block the keyboard. A reading that
//! fails is shown and the next one is tried: the view survives a restart of the gateway.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use warmroute_operate::StopSignals;

use super::fleet_reading::{FleetReading, WorkerReading};
use super::fleet_table::{FleetTable, SortKey};
use super::terminal::{Key, LineStyle, LiveTerminal, read_keys};
use crate::explain::decision::Decision;
use crate::explain::query::AdminListener;
use crate::explain::table;

/// Decisions shown below the table.
const DECISIONS: usize = 8;
/// Lines of the table that are worth more than the decisions: its head and some workers.
const TABLE_LINES_MIN: usize = 6;
/// Terminals with fewer lines have no chart.
const CHART_HEIGHT_MIN: usize = 16;
/// Terminals with fewer lines have no footer.
const FOOTER_HEIGHT_MIN: usize = 5;
/// Readings in the chart.
const CHART_LEN: usize = 200;
const FOOTERS: [&str; 3] = [
    "q quit   w f u s sort by worker, in flight, queue, share   ↑↓ scroll",
    "q quit  w f u s sort  ↑↓ scroll",
    "q quit",
];

/// What the screen reacts to.
enum Message {
    Read(Box<anyhow::Result<(FleetReading, Vec<Decision>)>>),
    Key(Key),
}

/// Shows the view until the user quits.
pub async fn show(listener: AdminListener, interval: Duration) -> anyhow::Result<()> {
    // A signal ends the view as a key does, so that the terminal is restored.
    let mut stop = StopSignals::listen()?;
    let terminal = LiveTerminal::enter()?;
    let (sender, mut messages) = unbounded_channel();
    tokio::spawn(read_forever(listener, interval, sender.clone()));
    std::thread::spawn(move || read_keys(|key| sender.send(Message::Key(key)).is_ok()));
    tokio::select! {
        shown = run(&terminal, &mut messages) => shown,
        () = stop.received() => Ok(()),
    }
}

async fn run(terminal: &LiveTerminal, messages: &mut UnboundedReceiver<Message>) -> anyhow::Result<()> {
    let mut screen = Screen::default();
    loop {
        // The size is read for each drawing, so a changed window is right at the next reading at the latest.
        let (width, height) = LiveTerminal::size();
        terminal.draw(&screen.lines(width, height))?;
        let Some(message) = messages.recv().await else { return Ok(()) };
        if screen.take(message) == Wish::Quit {
            return Ok(());
        }
    }
}

async fn read_forever(mut listener: AdminListener, interval: Duration, to: UnboundedSender<Message>) {
    loop {
        let reading = read(&mut listener).await;
        if to.send(Message::Read(Box::new(reading))).is_err() {
            return;
        }
        tokio::time::sleep(interval).await;
    }
}

async fn read(listener: &mut AdminListener) -> anyhow::Result<(FleetReading, Vec<Decision>)> {
    let reading = FleetReading::take(listener).await?;
    let decisions = listener.get(&format!("/explain?n={DECISIONS}")).await?;
    Ok((reading, serde_json::from_str(&decisions)?))
}

#[derive(Debug, PartialEq, Eq)]
enum Wish {
    GoOn,
    Quit,
}

/// The last two readings, and how the user arranged the table.
struct Screen {
    earlier: Option<FleetReading>,
    now: Option<FleetReading>,
    decisions: Vec<Decision>,
    /// Why the last reading failed.
    trouble: Option<String>,
    /// Requests in each interval, newest last.
    requests: VecDeque<u64>,
    sort: SortKey,
    /// Rows scrolled away.
    scrolled: usize,
}

impl Default for Screen {
    fn default() -> Screen {
        Screen {
            earlier: None,
            now: None,
            decisions: Vec::new(),
            trouble: None,
            requests: VecDeque::new(),
            sort: SortKey::Worker,
            scrolled: 0,
        }
    }
}

impl Screen {
    fn take(&mut self, message: Message) -> Wish {
        match message {
            Message::Key(key) => return self.press(key),
            Message::Read(read) => match *read {
                Ok((reading, decisions)) => self.show(reading, decisions),
                Err(why) => self.trouble = Some(format!("{why:#}")),
            },
        }
        Wish::GoOn
    }

    fn show(&mut self, reading: FleetReading, decisions: Vec<Decision>) {
        self.earlier = self.now.replace(reading);
        (self.decisions, self.trouble) = (decisions, None);
        if let (Some(now), Some(earlier)) = (&self.now, &self.earlier) {
            self.requests.push_back(FleetTable::new(now, Some(earlier)).requests() as u64);
        }
        let surplus = self.requests.len().saturating_sub(CHART_LEN);
        self.requests.drain(..surplus);
    }

    fn press(&mut self, key: Key) -> Wish {
        let rows = self.now.as_ref().map_or(0, |now| now.workers.len());
        match key {
            Key::Quit => return Wish::Quit,
            Key::Letter('w') => self.sort = SortKey::Worker,
            Key::Letter('f') => self.sort = SortKey::InFlight,
            Key::Letter('u') => self.sort = SortKey::Queue,
            Key::Letter('s') => self.sort = SortKey::Share,
            Key::Letter(_) => {}
            Key::Down => self.scrolled = (self.scrolled + 1).min(rows.saturating_sub(1)),
            Key::Up => self.scrolled = self.scrolled.saturating_sub(1),
        }
        Wish::GoOn
    }

    /// The lines of a terminal of this size: head, table, decisions, footer. The table gets what is left.
    fn lines(&self, width: usize, height: usize) -> Vec<(LineStyle, String)> {
        let mut lines = self.head(width, height);
        let footer_len = usize::from(height >= FOOTER_HEIGHT_MIN);
        let body = height.saturating_sub(lines.len() + footer_len);
        let workers = self.now.as_ref().map_or(0, |now| now.workers.len());
        // The table comes first where there is no room for both.
        let table_min = (workers + 1).min(TABLE_LINES_MIN.max(body / 2));
        let below = self.last_decisions(width, body.saturating_sub(table_min));
        let room = body - below.len();
        let mut table = self.table(width);
        // The table's head is one of the lines.
        let last_shown = (self.scrolled + room.saturating_sub(1)).min(workers);
        table.resize(room, (LineStyle::Plain, String::new()));
        lines.extend(table);
        lines.extend(below);
        if footer_len > 0 {
            let all_shown = self.scrolled == 0 && last_shown == workers;
            let part = (!all_shown).then(|| format!("{}-{last_shown} of {workers}", self.scrolled + 1));
            lines.push((LineStyle::Dim, footer(part, width)));
        }
        lines.truncate(height);
        lines.into_iter().map(|(style, line)| (style, line.chars().take(width).collect())).collect()
    }

    /// The headline, why the last reading failed, and the chart where there is room for it.
    fn head(&self, width: usize, height: usize) -> Vec<(LineStyle, String)> {
        let headline = match &self.now {
            Some(now) => FleetTable::new(now, self.earlier.as_ref()).headline(width),
            None => "reading…".to_owned(),
        };
        let mut head = vec![(LineStyle::Bold, headline)];
        head.extend(self.trouble.iter().map(|trouble| (LineStyle::Red, trouble.clone())));
        if height >= CHART_HEIGHT_MIN {
            head.push((LineStyle::Cyan, chart(&self.requests, width)));
            head.push((LineStyle::Plain, String::new()));
        }
        head
    }

    /// The table's head and the rows that are not scrolled away.
    fn table(&self, width: usize) -> Vec<(LineStyle, String)> {
        let Some(now) = &self.now else { return Vec::new() };
        let table = FleetTable::new(now, self.earlier.as_ref());
        let workers = table.sorted(self.sort);
        let mut lines = table.lines(&workers, width).into_iter();
        let head = lines.next().map(|head| (LineStyle::Reversed, head));
        let rows = workers.into_iter().map(state_style).zip(lines).skip(self.scrolled);
        head.into_iter().chain(rows).collect()
    }

    /// A free line, a head and the last decisions, in this many lines; nothing if there is no room.
    fn last_decisions(&self, width: usize, room: usize) -> Vec<(LineStyle, String)> {
        if self.decisions.is_empty() || room < 3 {
            return Vec::new();
        }
        let decisions = table::last_lines(&self.decisions, width).into_iter().take(DECISIONS + 1);
        let lines = std::iter::once(String::new()).chain(decisions).take(room);
        lines.map(|line| (LineStyle::Plain, line)).collect()
    }
}

fn state_style(worker: &WorkerReading) -> LineStyle {
    match &*worker.state {
        "ready" => LineStyle::Plain,
        "recovering" | "starting" => LineStyle::Yellow,
        _ => LineStyle::Red,
    }
}

/// The keys, in as many words as fit, after the part of the workers that is shown.
fn footer(part: Option<String>, width: usize) -> String {
    let part = part.map(|part| format!("{part}   ")).unwrap_or_default();
    let footers = FOOTERS.map(|keys| format!("{part}{keys}"));
    let fitting = footers.iter().find(|footer| footer.chars().count() <= width);
    fitting.unwrap_or(&footers[FOOTERS.len() - 1]).clone()
}

/// The newest values as bars, as many as fit.
fn chart(values: &VecDeque<u64>, width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let newest = values.iter().skip(values.len().saturating_sub(width));
    let highest = newest.clone().copied().max().unwrap_or(0).max(1);
    newest.map(|&value| BARS[(value * 8).div_ceil(highest) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::*;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn reading(workers: usize, requests: f64) -> FleetReading {
        let worker = |number: usize| {
            let mut worker = WorkerReading {
                label: format!("http://10.0.0.{number:03}:8000"),
                state: if number == 1 { "unhealthy" } else { "ready" }.to_owned(),
                view: "presumed".to_owned(),
                queue_ms: number as f64,
                ..WorkerReading::default()
            };
            worker.counts.requests = requests;
            worker
        };
        FleetReading {
            // A second for each request of a worker.
            at: *START + Duration::from_secs_f64(requests),
            readiness: "ready".to_owned(),
            workers: (0..workers).map(worker).collect(),
        }
    }

    fn drawn(screen: &Screen, width: usize, height: usize) -> Vec<String> {
        let lines = screen.lines(width, height);
        assert_eq!(lines.len(), height);
        assert!(lines.iter().all(|(_, line)| line.chars().count() <= width));
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn press(screen: &mut Screen, key: Key) -> Wish {
        screen.take(Message::Key(key))
    }

    #[test]
    fn a_large_fleet_is_sorted_and_scrolled() {
        let mut screen = Screen::default();
        assert_eq!(drawn(&screen, 100, 20)[0], "reading…");
        screen.take(Message::Read(Box::new(Ok((reading(200, 5.0), Vec::new())))));
        screen.take(Message::Read(Box::new(Ok((reading(200, 6.0), Vec::new())))));
        let lines = drawn(&screen, 100, 20);
        assert!(lines[0].starts_with("ready: 199"), "{}", lines[0]);
        assert_eq!(lines[1], "█", "requests since the first reading");
        assert!(
            lines[3].starts_with("worker") && lines[4].starts_with("http://10.0.0.000:8000"),
            "{lines:#?}"
        );
        assert!(lines[19].starts_with("1-15 of 200   q quit   w f u s sort by worker"), "{}", lines[19]);
        assert_eq!(press(&mut screen, Key::Letter('u')), Wish::GoOn);
        assert!(drawn(&screen, 100, 20)[4].starts_with("http://10.0.0.199:8000"));
        press(&mut screen, Key::Down);
        assert!(drawn(&screen, 100, 20)[4].starts_with("http://10.0.0.198:8000"));
        (0..300).for_each(|_| _ = press(&mut screen, Key::Down));
        assert!(drawn(&screen, 100, 20)[4].starts_with("http://10.0.0.000:8000"), "the last row stays");
        assert_eq!(press(&mut screen, Key::Quit), Wish::Quit);
    }

    #[test]
    fn a_gateway_that_does_not_answer_is_named_and_a_small_terminal_is_no_problem() {
        let mut screen = Screen::default();
        screen.take(Message::Read(Box::new(Ok((reading(2, 0.0), Vec::new())))));
        screen.take(Message::Read(Box::new(Err(anyhow::anyhow!("no gateway answers")))));
        let lines = drawn(&screen, 100, 12);
        assert_eq!(lines[1], "no gateway answers");
        assert!(lines[0].starts_with("ready"), "what was known stays");
        for (width, height) in [(1, 1), (20, 5), (300, 100)] {
            drawn(&screen, width, height);
        }
        screen.take(Message::Read(Box::new(Ok((reading(2, 0.0), Vec::new())))));
        assert!(drawn(&screen, 100, 12)[1].starts_with("worker"), "it is over");
    }

    fn decision() -> Decision {
        let text = r#"{"model":"m","policy":"expected_ttft","reason":"soonest_though_colder","prompt_tokens":12000,
            "age_ms":1000,"request_id":"0123456789","observed_ttft_ms":120.5,"candidates":[
            {"worker":"http://10.0.0.1:8000","rank":null,"chosen":true,"overlap_tokens":100,"prompts_ahead":1,
            "queue_ms":1.0,"prefill_ms":2.0,"lacking_ms":0.0,"step_ms":0.1,"expected_ttft_ms":3.0,"cost_ms":3.0}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_usual_terminal_shows_what_matters_and_a_small_one_the_table() {
        let mut screen = Screen::default();
        let decisions = || (0..8).map(|_| decision()).collect::<Vec<_>>();
        for requests in [5.0, 15.0] {
            screen.take(Message::Read(Box::new(Ok((reading(4, requests), decisions())))));
        }
        let heads = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        let usual = drawn(&screen, 80, 24);
        assert!(usual[0].ends_with(" requests/s"), "{}", usual[0]);
        assert_eq!(heads(&usual[3]), "worker state view flight wait run KV % queue ms hit % share %");
        assert_eq!(heads(&usual[4]), "10.0.0.000:8000 ready presumed 0 - - - 0 - 25");
        assert_eq!(heads(&usual[14]), "ago request worker reason tokens % expected observed");
        assert_eq!(usual[23], FOOTERS[0]);
        let wide = drawn(&screen, 200, 60);
        assert_eq!(
            heads(&wide[3]),
            "worker state view in flight waiting running KV % queue ms hit % share %"
        );
        let small = drawn(&screen, 40, 10);
        assert_eq!(heads(&small[1]), "worker state flight hit %");
        assert_eq!(heads(&small[5]), "10.0.0.003:8000 ready 0 -", "every worker is shown");
        assert_eq!(heads(&small[7]), "ago worker % expected observed");
        assert_eq!(small[9], FOOTERS[1]);
    }
}
