//! An MCP server with one resource, over its pipes.

use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};

const URI: &str = "note://one";

fn answer(request: &Value) -> Value {
    match request["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": { "resources": {} },
            "serverInfo": { "name": "notes", "version": "1" },
        }),
        "resources/list" => json!({ "resources": [{ "uri": URI, "name": "one" }] }),
        "resources/templates/list" => json!({ "resourceTemplates": [] }),
        "resources/read" => {
            json!({ "contents": [{ "uri": URI, "mimeType": "text/plain", "text": "a note" }] })
        }
        "tools/list" => json!({ "tools": [] }),
        _ => json!({}),
    }
}

fn main() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        // What has no id wants no answer.
        if let Some(id) = request.get("id") {
            let answer = json!({ "jsonrpc": "2.0", "id": id, "result": answer(&request) });
            writeln!(io::stdout(), "{answer}")?;
        }
    }
    Ok(())
}
