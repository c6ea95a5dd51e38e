// A session over plain HTTP in JavaScript: open it on an image, ask, read a stream, close. It needs nothing but Node 20.
//
// Start the server, then the program:
//
//     ts-stateful serve examples/shapes/model
//     node examples/vqa_http.mjs --image examples/shapes/scene.png

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const SCENE = fileURLToPath(new URL("shapes/scene.png", import.meta.url));
const { url, image } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:8080/predictions/chat" },
    image: { type: "string", default: SCENE },
  },
}).values;

class HttpSession {
  // A session, named by a header of every request.

  #headers = {};

  static async open(file) {
    const session = new HttpSession();
    const form = new FormData(); // a file of any name travels as it is, without base64
    form.append("data", JSON.stringify({ type: "open" }));
    form.append("image", new Blob([file]), "image");
    const opened = await (await session.#send(form)).json();
    session.#headers = { "Content-Type": "application/json", ts_request_sequence_id: opened.session_id };
    return session;
  }

  async post(document) {
    return (await this.#send(JSON.stringify(document))).json();
  }

  async *stream(prompt) {
    // Server-sent events: each a line that begins with `data: `, which may come in several chunks.
    const answer = await this.#send(JSON.stringify({ prompt, stream: true }));
    let rest = "";
    for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop();
      for (const line of lines.filter((line) => line.startsWith("data: "))) {
        const event = JSON.parse(line.slice("data: ".length));
        if (event.error) throw new Error(`${event.error.code}: ${event.error.message}`);
        yield event.text;
      }
    }
  }

  async #send(body) {
    const answer = await fetch(url, { method: "POST", headers: this.#headers, body });
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
    return answer;
  }
}

const session = await HttpSession.open(await readFile(image));
for (const question of ["How many shapes are there?", "Which shape is yellow?"]) {
  const { text, usage } = await session.post({ prompt: question });
  const cached = usage.prompt_tokens_details.cached_tokens;
  console.log(`${question} ${text}  [${cached} of ${usage.prompt_tokens} tokens cached]`);
}
process.stdout.write("What color is it? ");
for await (const piece of session.stream("What color is it?")) process.stdout.write(piece);
console.log();
console.log(`closed: ${(await session.post({ type: "close" })).closed}`);
