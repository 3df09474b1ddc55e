//! The publisher: one task that builds frames while a page is open, and sends each to all pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::body::AdminBody;
use super::frame::FrameBuilder;
use super::pages::OpenPages;
use super::state::Console;
use crate::drain::Drain;
use crate::fleet_notes::FleetNotes;
use crate::forwarding::Forwarding;

/// Pages that may be open at once.
const PAGES_MAX: usize = 16;

/// Frames that a slow page may be behind. Beyond that its stream ends, and the page connects again.
const FRAMES_BEHIND: usize = 8;

/// Shortest and longest time between two frames.
const FRAME_EVERY: Duration = Duration::from_millis(500);
const FRAME_EVERY_MAX: Duration = Duration::from_secs(60);

/// The time between two frames is at least this multiple of the time that one took: half a percent of a core.
const REST: u32 = 200;

/// As many pages as possible are open.
#[derive(Debug)]
pub(crate) struct TooManyPages;

/// Opens the stream of a page. It ends when a drain of the admin listener begins.
pub(crate) fn subscribe(
    forwarding: &Arc<Forwarding>,
    notes: &Arc<FleetNotes>,
    drain: &Drain,
) -> Result<AdminBody, TooManyPages> {
    let (page, events) = mpsc::channel(FRAMES_BEHIND);
    let console = &forwarding.observers.console;
    let mut open = console.pages.open.lock();
    open.pages.retain(|page| !page.is_closed());
    open.new.retain(|page| !page.is_closed());
    if open.pages.len() + open.new.len() >= PAGES_MAX {
        return Err(TooManyPages);
    }
    open.new.push(page);
    if !std::mem::replace(&mut open.is_published, true) {
        console.open();
        let (forwarding, notes) = (Arc::clone(forwarding), Arc::clone(notes));
        tokio::spawn(publish_until_drained(forwarding, notes, drain.clone()));
    }
    Ok(AdminBody::Events(events))
}

async fn publish_until_drained(forwarding: Arc<Forwarding>, notes: Arc<FleetNotes>, drain: Drain) {
    let console = &forwarding.observers.console;
    let builder = FrameBuilder::new(Arc::clone(&forwarding), notes);
    tokio::select! {
        () = publish(console, builder) => {}
        () = drain.wait_begun() => {
            let mut open = console.pages.open.lock();
            *open = OpenPages::default();
            console.close();
        }
    }
}

/// Publishes frames until no page is open.
async fn publish(console: &Console, mut builder: FrameBuilder) {
    loop {
        let began = Instant::now();
        if !send_frame(console, &mut builder) {
            return;
        }
        builder.built = began.elapsed();
        let rest = builder.built.saturating_mul(REST).clamp(FRAME_EVERY, FRAME_EVERY_MAX);
        tokio::time::sleep(rest).await;
    }
}

/// Sends one frame to all pages. Returns false, and ends all recording, if none is open.
fn send_frame(console: &Console, builder: &mut FrameBuilder) -> bool {
    let new = {
        let mut open = console.pages.open.lock();
        open.pages.retain(|page| !page.is_closed());
        open.new.retain(|page| !page.is_closed());
        if open.pages.is_empty() && open.new.is_empty() {
            open.is_published = false;
            console.close();
            return false;
        }
        std::mem::take(&mut open.new)
    };
    let first = (!new.is_empty()).then(|| builder.first_frame());
    let frame = builder.frame();
    let mut open = console.pages.open.lock();
    open.pages.retain(|page| page.try_send(frame.clone()).is_ok());
    let greeted = new
        .into_iter()
        .filter(|page| first.iter().chain([&frame]).all(|frame| page.try_send(frame.clone()).is_ok()));
    open.pages.extend(greeted);
    true
}
