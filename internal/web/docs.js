"use strict";

// The page shows /openapi.json. Everything it shows goes into text nodes and
// attributes, never into markup, so nothing in the description can become code.
(() => {
  const byID = (id) => document.getElementById(id);
  const errorCodes = /*errors*/ [];
  const methods = ["get", "post", "put", "patch", "delete"];
  let spec;

  // make makes an element; children are elements and texts, null is nothing.
  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  // resolve follows references within the description; what stands next to one wins.
  function resolve(thing) {
    for (let hops = 0; thing && thing.$ref && hops < 10; hops++) {
      let target = spec;
      for (const part of thing.$ref.replace(/^#\//, "").split("/")) {
        target = target && target[part.replace(/~1/g, "/").replace(/~0/g, "~")];
      }
      const { $ref, ...own } = thing;
      thing = { ...target, ...own, properties: { ...(target || {}).properties, ...own.properties } };
      if (Object.keys(thing.properties).length === 0) delete thing.properties;
    }
    if (thing && thing.allOf) {
      const parts = thing.allOf.map(resolve);
      thing = { ...thing, type: "object", properties: Object.assign({}, ...parts.map((part) => part.properties)), required: parts.flatMap((part) => part.required || []) };
    }
    return thing || {};
  }

  const nameOf = (schema) => (schema && schema.$ref ? schema.$ref.split("/").pop() : "");
  const typesOf = (schema) => [].concat(schema.type || []).filter((type) => type !== "null");

  const isNull = (schema) => schema.type === "null";

  // typeText says in words what a value is.
  function typeText(schema) {
    const whole = resolve(schema);
    const choice = whole.oneOf || whole.anyOf;
    let text;
    if (choice) {
      text = choice.filter((one) => !isNull(one)).map(typeText).join(" or ");
    } else if (whole.type && typesOf(whole)[0] === "array") {
      text = "array of " + typeText(whole.items || {});
    } else if (whole.contentSchema) {
      text = "JSON of " + typeText(whole.contentSchema);
    } else {
      text = nameOf(schema) || typesOf(whole).join(" or ") || "any value";
      const format = whole.format || whole.contentEncoding;
      if (format) text += " (" + format + ")";
    }
    if ([].concat(whole.type || []).includes("null") || choice && choice.some(isNull)) text += " or null";
    return text;
  }

  const grouped = (number) => (Number.isInteger(number) ? number.toLocaleString("en") : String(number));

  // boundsText says what else a value must be.
  function boundsText(schema) {
    const s = resolve(schema);
    const parts = [];
    if (s.minimum !== undefined && s.maximum !== undefined) parts.push(grouped(s.minimum) + " to " + grouped(s.maximum));
    else if (s.minimum !== undefined) parts.push("at least " + grouped(s.minimum));
    else if (s.maximum !== undefined) parts.push("at most " + grouped(s.maximum));
    if (s.minLength !== undefined && s.maxLength !== undefined) parts.push(s.minLength + " to " + s.maxLength + " characters");
    else if (s.minLength !== undefined) parts.push("at least " + s.minLength + " characters");
    else if (s.maxLength !== undefined) parts.push("at most " + s.maxLength + " characters");
    if (s.minItems !== undefined) parts.push("at least " + s.minItems + " items");
    if (s.maxItems !== undefined) parts.push("at most " + s.maxItems + " items");
    if (s.default !== undefined) parts.push("default " + JSON.stringify(s.default));
    return parts.join(", ");
  }

  // codeOf shows code; an error code links to its meaning.
  function codeOf(text) {
    const code = make("code", null, text);
    return errorCodes.some((one) => one.code === text) ? make("a", { href: "#error-" + text }, code) : code;
  }

  // piecesOf turns `code` in a text into code, and the list after Errors: too.
  function piecesOf(text) {
    const [before, codes] = text.split("Errors: ");
    const pieces = before.split("`").map((piece, i) => (i % 2 ? codeOf(piece) : piece));
    if (codes) pieces.push("Errors: ", ...codes.split(/([A-Z][A-Z_0-9]+)/).map((piece, i) => (i % 2 ? codeOf(piece) : piece)));
    return pieces;
  }

  // paragraphs turns a description into paragraphs.
  function paragraphs(text) {
    return (text || "").split(/\n{2,}/).filter((part) => part.trim() !== "").map((part) => make("p", null, piecesOf(part)));
  }

  // wordsOf is a summary of the words of an operation ID.
  function wordsOf(id) {
    const text = (id || "").replace(/-/g, " ");
    return text.charAt(0).toUpperCase() + text.slice(1);
  }

  // field is a row: a name, what it is, what it means, and a given example.
  function field(name, schema, required, description, seen, given) {
    const whole = resolve(schema);
    const bounds = boundsText(schema);
    const value = make("dd", null, paragraphs(description || (whole.contentSchema ? "" : whole.description)));
    if (nameOf(schema) && !whole.properties && description && whole.description) value.append(make("p", { class: "type" }, whole.description));
    if (whole.enum) value.append(make("p", { class: "type" }, "one of ", whole.enum.filter((one) => one !== null).flatMap((one, i) => [i ? ", " : "", make("code", null, String(one))])));
    const example = given === undefined ? exampleOf(whole) : given;
    if (example !== undefined && typeof example !== "object") value.append(make("p", { class: "type" }, "e.g. ", make("code", null, String(example))));
    const inner = innerOf(schema);
    if (inner) value.append(later("Fields of " + (nameOf(inner) || name), () => fieldsOf(inner, seen)));
    return make("div", null, make("dt", null, make("code", null, name), " ", required ? make("span", { class: "need" }, "required") : null,
      make("div", { class: "type" }, typeText(schema) + (bounds ? ", " + bounds : ""))), value);
  }

  const exampleOf = (schema) => (schema.examples && schema.examples.length ? schema.examples[0] : schema.example);

  // innerOf is the object in a schema: itself, what its array holds, or the first
  // of its choices that is one; null = none.
  function innerOf(schema) {
    const whole = resolve(schema);
    if (whole.properties) return schema;
    if (whole.items) return innerOf(whole.items);
    if (whole.contentSchema) return innerOf(whole.contentSchema);
    for (const choice of whole.oneOf || whole.anyOf || []) {
      const inner = innerOf(choice);
      if (inner) return inner;
    }
    return null;
  }

  function fieldsOf(schema, seen = []) {
    const name = nameOf(schema);
    if (name && seen.includes(name)) return make("p", { class: "type" }, "as above");
    const whole = resolve(schema);
    const rows = Object.entries(whole.properties || {}).map(([key, one]) =>
      field(key, one, (whole.required || []).includes(key), one.description, name ? [...seen, name] : seen));
    return make("dl", { class: "fields" }, rows);
  }

  // later is a part that is made when it is opened for the first time.
  function later(title, fill, open) {
    const details = make("details", { class: "schema", open }, make("summary", null, title), open ? fill() : null);
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(fill());
    });
    return details;
  }

  // sample makes a value that fits a schema: what is required and what has an example.
  function sample(schema, depth = 0) {
    const whole = resolve(schema);
    const example = exampleOf(whole);
    if (example !== undefined) return example;
    if (whole.enum) return whole.enum[0];
    if (whole.default !== undefined) return whole.default;
    if (whole.oneOf || whole.anyOf) return sample((whole.oneOf || whole.anyOf)[0], depth);
    switch (typesOf(whole)[0]) {
      case "object": {
        const out = {};
        for (const [key, one] of Object.entries(whole.properties || {})) {
          if (depth < 5 && ((whole.required || []).includes(key) || exampleOf(resolve(one)) !== undefined)) out[key] = sample(one, depth + 1);
        }
        return out;
      }
      case "array": return [sample(whole.items || {}, depth + 1)];
      case "integer": case "number": return whole.minimum || 1;
      case "boolean": return true;
      default: return whole.format === "date-time" ? "2030-01-01T00:00:00Z" : "…";
    }
  }

  const quoted = (text) => "'" + text.replace(/'/g, "'\\''") + "'";

  // curl is a command line that calls an operation.
  function curl(operation) {
    const base = new URL(".", location.href);
    let path = operation.path;
    const query = [];
    for (const parameter of operation.parameters) {
      const example = parameter.example !== undefined ? parameter.example : exampleOf(resolve(parameter.schema || {}));
      if (parameter.in === "path") {
        path = path.replace("{" + parameter.name + "}", example === undefined ? parameter.name.toUpperCase() : encodeURIComponent(example));
      } else if (parameter.in === "query" && parameter.required) {
        query.push(encodeURIComponent(parameter.name) + "=" + encodeURIComponent(example === undefined ? "…" : example));
      }
    }
    const answers = Object.entries(operation.responses || {}).filter(([status]) => status.startsWith("2")).flatMap(([, answer]) => Object.keys(resolve(answer).content || {}));
    const parts = ["curl" + (answers.includes("text/event-stream") ? " -N" : "") + (operation.method === "get" ? "" : " -X " + operation.method.toUpperCase()) + " " +
      quoted(base.href.replace(/\/$/, "") + path + (query.length ? "?" + query.join("&") : ""))];
    if ((operation.security || spec.security || []).some((way) => Object.keys(way).length)) {
      parts.push('-H "Authorization: Bearer $LARGESSE_API_KEY"');
    }
    const [type, media] = Object.entries((operation.requestBody && resolve(operation.requestBody).content) || {})[0] || [];
    if (type) parts.push("-H " + quoted("Content-Type: " + type));
    if (type && /json$/.test(type)) parts.push("-d " + quoted(JSON.stringify(media.example !== undefined ? media.example : sample(media.schema || {}))));
    else if (type) parts.push("--data-binary @file");
    return parts.join(" \\\n  ");
  }

  async function copy(text, button, source) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Not every page may write to the clipboard: then the text is selected at least.
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function exampleBox(operation) {
    const text = curl(operation);
    const source = make("pre", { tabindex: "0", "aria-label": "curl example" }, make("code", null, text));
    const button = make("button", { type: "button", "aria-label": "Copy the curl example of " + operation.summary }, "Copy");
    button.addEventListener("click", () => copy(text, button, source));
    return make("div", { class: "example" }, make("h4", null, "Example"), button, source);
  }

  // contentOf shows the forms that a body can have.
  function contentOf(content, open) {
    return Object.entries(content || {}).map(([type, media]) => {
      const inner = media.schema && innerOf(media.schema);
      const what = media.schema ? typeText(media.schema) : "";
      const text = make("p", { class: "type" }, make("code", null, type), what ? " " + what : "");
      const description = media.schema && !inner ? paragraphs(resolve(media.schema).description) : [];
      return make("div", null, text, description, inner ? later("Fields of " + (nameOf(inner) || "the body"), () => fieldsOf(inner), open) : null);
    });
  }

  function answerOf(status, given) {
    const answer = resolve(given);
    const headers = Object.entries(answer.headers || {}).map(([name, header]) => {
      const whole = resolve(header);
      return make("p", { class: "type" }, make("code", null, name), " ", whole.description || resolve(whole.schema || {}).description || "");
    });
    return make("div", { class: "answer " + (status >= "400" ? "bad" : "good") }, make("strong", null, status), make("div", null,
      paragraphs(answer.description), headers, contentOf(answer.content)));
  }

  function bodyOf(operation) {
    const parts = [make("div", null, paragraphs(operation.description))];
    parts.push(exampleBox(operation));
    if (operation.parameters.length) {
      parts.push(make("h4", null, "Parameters"), make("dl", { class: "fields" }, operation.parameters.map((parameter) =>
        field(parameter.name, { ...parameter.schema, description: undefined }, parameter.required,
          "In the " + parameter.in + "." + (parameter.description ? " " + parameter.description : ""), [], parameter.example))));
    }
    if (operation.requestBody) {
      const body = resolve(operation.requestBody);
      parts.push(make("h4", null, "Request body", body.required ? " (required)" : ""), contentOf(body.content, true));
    }
    parts.push(make("h4", null, "Answers"), Object.entries(operation.responses || {}).sort().map(([status, answer]) => answerOf(status, answer)));
    return make("div", { class: "body" }, parts.flat());
  }

  // pathOf lets a path break before its slashes.
  const pathOf = (path) => path.split(/(?=\/)/).flatMap((part) => [make("wbr"), part]);

  function operationOf(operation) {
    const id = "op-" + operation.operationId;
    const summary = make("summary", null, make("span", { class: "method " + operation.method }, operation.method.toUpperCase()),
      make("h3", { class: "path" }, pathOf(operation.path)), make("a", { class: "anchor", href: "#" + id, "aria-label": "Link to " + operation.summary }, "#"),
      make("p", { class: "short" }, operation.summary || ""));
    const details = make("details", { class: "operation", id }, summary);
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(bodyOf(operation));
    });
    operation.element = details;
    return details;
  }

  // errorsOf lists all error codes.
  function errorsOf(codes) {
    return make("section", { "aria-labelledby": "errors" }, make("h2", { id: "errors" }, "Errors"),
      make("table", { class: "errors" }, make("thead", null, make("tr", null, ["Code", "Status", "Meaning", "What to do"].map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", null, codes.map((one) => make("tr", { id: "error-" + one.code }, make("td", null, make("code", null, one.code)), make("td", null, String(one.status)),
          make("td", null, one.meaning), make("td", null, one.action))))));
  }

  function operationsOf() {
    const all = [];
    for (const [path, item] of Object.entries(spec.paths || {})) {
      for (const method of methods) {
        if (!item[method]) continue;
        const given = item[method];
        const parameters = [...(item.parameters || []), ...(given.parameters || [])].map(resolve);
        const operation = { ...given, summary: given.summary || wordsOf(given.operationId), path, method, parameters, tag: (given.tags || ["others"])[0] };
        operation.text = [method, path, given.operationId, operation.summary, given.description, operation.tag, ...parameters.map((one) => one.name)].join(" ").toLowerCase();
        all.push(operation);
      }
    }
    return all;
  }

  function show() {
    const operations = operationsOf();
    const groups = new Map((spec.tags || []).map((tag) => [tag.name, []]));
    for (const operation of operations) {
      if (!groups.has(operation.tag)) groups.set(operation.tag, []);
      groups.get(operation.tag).push(operation);
    }
    byID("title").textContent = "API of " + spec.info.title;
    byID("version").textContent = spec.info.version;
    const buttons = [["Open all", true], ["Close all", false]].map(([text, open]) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => { for (const one of operations) if (!one.element.hidden) one.element.open = open; });
      return button;
    });
    byID("intro").append(...paragraphs(spec.info.description), make("div", { class: "tools" }, buttons));
    const navigation = document.querySelector("nav");
    const sections = [];
    let number = 0;
    for (const [tag, members] of groups) {
      if (!members.length) continue;
      const id = "tag-" + number++;
      const section = make("section", { "aria-labelledby": id }, make("h2", { id }, tag), members.map(operationOf));
      const links = members.map((one) => {
        one.link = make("li", null, make("a", { href: "#op-" + one.operationId }, make("span", { class: "method " + one.method }, one.method.toUpperCase()), make("span", null, one.summary || one.path)));
        return one.link;
      });
      const block = make("div", null, make("h2", null, tag), make("ul", null, links));
      byID("list").append(section);
      navigation.append(block);
      sections.push({ section, block, members });
    }
    if (errorCodes.length) {
      byID("list").append(errorsOf(errorCodes));
      navigation.append(make("div", null, make("h2", null, "more"), make("ul", null, make("li", null, make("a", { href: "#errors" }, make("span", { class: "method" }, ""), make("span", null, "Errors"))))));
    }
    filterBy(operations, sections);
    goToHash();
    addEventListener("hashchange", goToHash);
  }

  // filterBy shows what has every word of the filter box, which the address keeps.
  function filterBy(operations, sections) {
    const box = byID("filter");
    const status = byID("status");
    const apply = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const one of operations) {
        const fits = words.every((word) => one.text.includes(word));
        one.element.hidden = one.link.hidden = !fits;
        if (fits) count++;
      }
      for (const { section, block, members } of sections) section.hidden = block.hidden = members.every((one) => one.element.hidden);
      status.textContent = words.length ? count + " of " + operations.length + " operations" : operations.length + " operations";
      const address = new URL(location.href);
      if (words.length) address.searchParams.set("filter", box.value);
      else address.searchParams.delete("filter");
      if (address.href !== location.href) history.replaceState(null, "", address);
    };
    box.value = new URLSearchParams(location.search).get("filter") || "";
    box.addEventListener("input", apply);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && box.value !== "") {
        box.value = "";
        apply();
        event.preventDefault();
      }
    });
    addEventListener("keydown", (event) => {
      const typing = event.target.closest && event.target.closest("input, textarea, select");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        box.focus();
        event.preventDefault();
      }
    });
    apply();
  }

  // goToHash opens the operation that the address names, and goes there.
  function goToHash() {
    let id = "";
    try {
      id = decodeURIComponent(location.hash.slice(1));
    } catch {
      return; // not an address of ours
    }
    const target = id && byID(id);
    if (!target) return;
    for (const one of document.querySelectorAll(".here")) one.classList.remove("here");
    target.classList.add("here");
    if (target.matches("details.operation")) {
      target.hidden = false;
      target.closest("section").hidden = false;
      target.open = true;
      target.querySelector("summary").focus({ preventScroll: true });
    }
    target.scrollIntoView();
  }

  async function load() {
    if (matchMedia("(max-width: 60rem)").matches) byID("contents").open = false;
    try {
      const answer = await fetch("openapi.json", { headers: { Accept: "application/openapi+json, application/json" } });
      if (!answer.ok) throw new Error("openapi.json answered " + answer.status);
      spec = await answer.json();
    } catch (error) {
      const status = byID("status");
      status.className = "wrong";
      status.textContent = "The description could not be loaded: " + error.message + ". Is the server up? ";
      const again = make("button", { type: "button" }, "Try again");
      again.addEventListener("click", () => location.reload());
      status.append(again);
      return;
    }
    show();
  }

  load();
})();
