//! Images in prompts: what engines make of them is learned, kept over restarts of engines and routers, and checked.

use warmroute_prompt::{MediaPrompt, MediumFacts, write_media};
use warmroute_types::MediumStart;

use super::*;
use crate::request::Content;
use crate::{KnownMedium, UnknownMedia};

const PLACEHOLDER: u8 = b'#';

/// A picture, and what an engine makes of it.
#[derive(Clone, Copy)]
struct Picture {
    medium: u64,
    hash: u64,
    tokens: usize,
}

const BOAT: Picture = Picture { medium: 1, hash: 71, tokens: 40 };
const GOAT: Picture = Picture { medium: 2, hash: 72, tokens: 35 };

/// A question about a picture.
struct Question {
    before: Vec<u8>,
    picture: Picture,
    after: Vec<u8>,
}

impl Question {
    /// Of a conversation under the same system prompt as the others.
    fn new(picture: Picture, conversation: u8, len: usize) -> Question {
        Question { before: text(1, 100), picture, after: text(conversation, len) }
    }

    /// As the template writes it.
    fn rendered(&self) -> Vec<u8> {
        let mark = format!("\u{10fffd}{:016x}[#]", self.picture.medium);
        [&self.before, mark.as_bytes(), &self.after].concat()
    }

    fn tokens(&self) -> Vec<u32> {
        let placeholders = vec![PLACEHOLDER; self.picture.tokens];
        let bytes = [&self.before, &b"["[..], &placeholders, b"]", &self.after].concat();
        bytes.into_iter().map(u32::from).collect()
    }

    fn whole_blocks(&self) -> u32 {
        (self.tokens().len() / BLOCK * BLOCK) as u32
    }

    /// All its blocks, as an engine reports them.
    fn event(&self) -> CacheEvent {
        let (mut tokens, start) = (self.tokens(), self.before.len() + 1);
        let blocks = tokens.len() / BLOCK;
        tokens.truncate(blocks * BLOCK);
        let named = |end: usize| {
            let bytes: Vec<u8> = tokens[..end].iter().map(|&token| token as u8).collect();
            if end > start { name(&bytes) ^ self.picture.hash } else { name(&bytes) }
        };
        let text_blocks = start / BLOCK;
        CacheEvent::Stored(StoredBlocks {
            names: (1..=blocks).map(|block| named(block * BLOCK)).collect(),
            block_tokens: BLOCK as u32,
            text_blocks: text_blocks as u32,
            media_blocks: (blocks - text_blocks) as u32,
            media: vec![MediumStart { token: start as u32, hash: self.picture.hash }],
            tokens,
            ..StoredBlocks::default()
        })
    }

    fn write(&self, known: impl Fn(u64) -> Option<KnownMedium>) -> MediaPrompt {
        write_media(&self.rendered(), |medium| known(medium).map(|known| known.facts))
    }

    /// Asks it at a worker, which reports all its blocks and then answers. Returns the predicted tokens.
    fn ask(&self, router: &Router<Standard>, worker_index: u16, found: Option<u32>) -> u32 {
        self.ask_with(router, worker_index, found, Some(self.event()))
    }

    /// The same, with what the worker reports before it answers.
    fn ask_with(
        &self,
        router: &Router<Standard>,
        worker_index: u16,
        found: Option<u32>,
        event: Option<CacheEvent>,
    ) -> u32 {
        let family = Family::new("m");
        let known = |medium| router.inspect().medium(&family, medium);
        let asking = Asking::of(&self.write(known).bytes);
        let checked = self.write(|medium| known(medium).filter(|known| known.is_checked));
        let (at, rest) = (checked.bytes.len(), checked.rest.as_slice());
        let media = UnknownMedia { text: 0, family: family.key(), at, rest };
        let others: Vec<_> = router.inspect().workers().iter().map(|view| view.worker.id).collect();
        let avoid: Vec<_> = others.into_iter().filter(|id| id.0 != worker_index).collect();
        let texts = [asking.text(router)];
        let request = Request {
            unknown_media: (!rest.is_empty()).then_some(media),
            content: Content::Media,
            avoid: &avoid,
            ..asking.request(&texts)
        };
        let mut decision = router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
        event.into_iter().for_each(|event| report(router, worker_index, event));
        let usage =
            Usage { prompt_tokens: self.tokens().len() as u32, output_tokens: 1, cached_tokens: found };
        router.feedback(&mut decision, Answered { request: &request, usage, at: Micros(1) });
        decision.cached_tokens.unwrap()
    }
}

fn medium(router: &Router<Standard>, picture: Picture) -> Option<KnownMedium> {
    router.inspect().medium(&Family::new("m"), picture.medium)
}

fn facts(picture: Picture) -> MediumFacts {
    let Picture { hash, tokens, .. } = picture;
    MediumFacts { hash, placeholder: [PLACEHOLDER][..].into(), tokens: tokens as u32 }
}

fn restart(router: &Router<Standard>, worker_index: u16) {
    router.apply(Change::Emptied { worker: worker(router, worker_index) });
}

#[test]
fn an_engines_restart_leaves_media_known_for_the_others() {
    let router = router_of(2);
    let question = Question::new(BOAT, 2, 120);
    assert_eq!(question.ask(&router, 0, Some(0)), 0);
    restart(&router, 1);
    assert_eq!(medium(&router, BOAT), Some(KnownMedium { facts: facts(BOAT), is_checked: false }));
    assert_eq!(question.ask(&router, 0, Some(question.whole_blocks())), question.whole_blocks());
    assert_eq!(medium(&router, BOAT), Some(KnownMedium { facts: facts(BOAT), is_checked: true }));
}

#[test]
fn an_engine_restarted_with_other_settings_replaces_what_was_known() {
    let router = router_of(1);
    Question::new(BOAT, 2, 120).ask(&router, 0, Some(0));
    restart(&router, 0);
    let other = Picture { hash: 99, tokens: 70, ..BOAT };
    let question = Question::new(other, 2, 120);
    assert_eq!(question.ask(&router, 0, Some(0)), 0);
    assert_eq!(medium(&router, BOAT), Some(KnownMedium { facts: facts(other), is_checked: true }));
    assert_eq!(question.ask(&router, 0, Some(question.whole_blocks())), question.whole_blocks());
}

#[test]
fn media_that_are_cached_already_are_learned_from_the_whole_prompt() {
    let router = router_of(1);
    // Before this router started: two conversations that part at their pictures.
    let [boat, goat] = [Question::new(BOAT, 2, 120), Question::new(GOAT, 3, 120)];
    [&boat, &goat].into_iter().for_each(|question| report(&router, 0, question.event()));
    assert_eq!(boat.ask(&router, 0, Some(boat.whole_blocks())), 96, "up to the picture");
    assert_eq!(medium(&router, BOAT).map(|known| known.facts), Some(facts(BOAT)));
    assert_eq!(boat.ask(&router, 0, Some(boat.whole_blocks())), boat.whole_blocks());
}

#[test]
fn of_two_media_in_equal_conversations_none_is_learned() {
    let router = router_of(1);
    let large_goat = Picture { tokens: BOAT.tokens, ..GOAT };
    let [boat, goat] = [BOAT, large_goat].map(|picture| Question::new(picture, 2, 120));
    [&boat, &goat].into_iter().for_each(|question| report(&router, 0, question.event()));
    boat.ask(&router, 0, Some(boat.whole_blocks()));
    assert_eq!(medium(&router, BOAT), None);
}

#[test]
fn a_medium_that_was_computed_is_not_taken_for_a_cached_one_while_its_events_are_late() {
    let router = router_of(1);
    let large_goat = Picture { tokens: BOAT.tokens, ..GOAT };
    let [boat, goat] = [BOAT, large_goat].map(|picture| Question::new(picture, 2, 120));
    boat.ask(&router, 0, Some(0));
    let text_blocks = (boat.before.len() / BLOCK * BLOCK) as u32;
    goat.ask_with(&router, 0, Some(text_blocks), None);
    assert_eq!(medium(&router, large_goat), None, "the same text with another picture is cached");
    report(&router, 0, goat.event());
    assert_eq!(medium(&router, large_goat).map(|known| known.facts), Some(facts(large_goat)));
}

#[test]
fn the_first_media_are_learned_where_an_engine_omits_a_count_of_zero() {
    let router = router_of(1);
    let question = Question::new(BOAT, 2, 120);
    assert_eq!(question.ask(&router, 0, None), 0);
    assert_eq!(question.ask(&router, 0, Some(question.whole_blocks())), question.whole_blocks());
}

#[test]
fn media_are_saved_and_checked_by_the_next_process() {
    let old = router_of(1);
    let question = Question::new(BOAT, 2, 120);
    question.ask(&old, 0, Some(0));
    let saved = old.inspect().saved_state(Micros(1), 0);
    let read = SavedState::decode(&saved.encode()).unwrap();
    assert_eq!(read, saved);
    let new = router_of(1);
    new.apply(Change::Restored { state: Box::new(read), age: Micros(1), at: Micros(1) });
    assert_eq!(medium(&new, BOAT), Some(KnownMedium { facts: facts(BOAT), is_checked: false }));
    // The engine reports its cache again.
    report(&new, 0, question.event());
    assert_eq!(question.ask(&new, 0, Some(question.whole_blocks())), question.whole_blocks());
    assert_eq!(medium(&new, BOAT).map(|known| known.is_checked), Some(true));
}
