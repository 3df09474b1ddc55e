//! Reads a response for a picker that did not choose its worker, and applies what another picker read.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use warmroute_types::Usage;

use crate::answer_state::AnswerState;
use crate::attempt_outcome::AttemptOutcome;
use crate::first_token::FirstToken;
use crate::framing::Framing;
use crate::id_watch::IdWatch;
use crate::pick::Pick;
use crate::response_content::ResponseContent;
use crate::response_report::{REPORT_BYTES_MAX, ResponseReport};
use crate::usage::UsageWatch;

/// Reads a response whose pick is held by another picker.
#[derive(Default)]
pub struct ResponseReader {
    /// Looks for the first token; `None` once seen, or if the response is not a stream.
    first_token: Option<FirstToken>,
    content: ResponseContent,
    id_watch: IdWatch,
    id: Option<String>,
}

impl ResponseReader {
    /// Takes the head of the response.
    pub fn begin(&mut self, status: StatusCode, headers: &HeaderMap) -> ResponseReport {
        let framing = Framing::of(headers);
        let is_stream = framing == Framing::Events;
        let state = Some(AnswerState::new(framing));
        self.content = ResponseContent::new(framing, UsageWatch::default()).read_state(state);
        let is_ok = AttemptOutcome::of(status) == AttemptOutcome::Ok;
        self.first_token = (is_stream && is_ok).then(FirstToken::default);
        let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        ResponseReport::Begun {
            status: status.as_u16(),
            is_stream,
            retry_after: retry_after.filter(|text| text.len() < 64).map(str::to_owned),
        }
    }

    /// Reads a chunk. Returns a report if it has the first token.
    pub fn read_chunk(&mut self, chunk: &[u8]) -> Option<ResponseReport> {
        self.content.observe(chunk);
        if self.id.is_none() {
            self.id = self.id_watch.walk(chunk).filter(|id| id.len() < REPORT_BYTES_MAX / 2);
        }
        let is_first = self.first_token.as_mut().is_some_and(|first_token| first_token.is_in(chunk));
        is_first.then(|| {
            self.first_token = None;
            ResponseReport::FirstToken
        })
    }

    /// The report of a complete response.
    pub fn end(self) -> ResponseReport {
        let counts = |usage: Usage| (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens);
        let usage = self.content.usage.read();
        let has_output = usage.is_some_and(|usage| usage.output_tokens > 0);
        let is_computed = self.content.state.is_some_and(|state| state.has_ended(has_output));
        ResponseReport::Ended { usage: usage.map(counts), id: self.id, is_computed }
    }
}

impl Pick {
    /// Applies what another picker saw of the response; `None` if the pick has ended.
    pub fn apply(mut self: Box<Pick>, report: ResponseReport) -> Option<Box<Pick>> {
        match report {
            ResponseReport::Open => {}
            ResponseReport::Begun { status, is_stream, retry_after } => {
                let mut headers = HeaderMap::new();
                if is_stream {
                    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                }
                let retry_after = retry_after.and_then(|text| HeaderValue::from_str(&text).ok());
                headers.extend(retry_after.map(|value| (header::RETRY_AFTER, value)));
                self.begin_response(StatusCode::from_u16(status).unwrap_or_default(), &headers);
            }
            ResponseReport::FirstToken => self.mark_first_token(),
            ResponseReport::Ended { usage, id, is_computed } => {
                let usage = usage.map(|(prompt_tokens, output_tokens, cached_tokens)| Usage {
                    prompt_tokens,
                    output_tokens,
                    cached_tokens,
                });
                self.end_as_reported(usage, id.as_deref(), is_computed);
                return None;
            }
            ResponseReport::Elsewhere => {
                self.end_elsewhere();
                return None;
            }
            ResponseReport::Left => return None,
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response_report::PickReport;

    #[test]
    fn a_response_becomes_a_few_reports_without_its_text() {
        let mut reader = ResponseReader::default();
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::RETRY_AFTER, HeaderValue::from_static("3")),
        ]);
        let mut reports = vec![reader.begin(StatusCode::OK, &headers)];
        for chunk in [
            &b"data: {\"id\":\"resp_1\",\"text\":\"secret"[..],
            b" words\"}\n\n",
            b"data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
            b"\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n",
        ] {
            reports.extend(reader.read_chunk(chunk));
        }
        reports.push(reader.end());
        let begun = ResponseReport::Begun { status: 200, is_stream: true, retry_after: Some("3".to_owned()) };
        let (usage, id) = (Some((9, 2, Some(4))), Some("resp_1".to_owned()));
        let ended = ResponseReport::Ended { usage, id, is_computed: true };
        assert_eq!(reports, [begun, ResponseReport::FirstToken, ended]);
        for report in reports {
            let sent = PickReport { pick: u64::MAX, report }.encode();
            assert!(!String::from_utf8(sent.clone()).unwrap().contains("secret"));
            assert_eq!(PickReport::decode(&sent).unwrap().encode(), sent);
        }
    }
}
