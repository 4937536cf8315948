// Draws markup that Python made. Texts in it are escaped there; what could act is taken out here as well.
const ACTING = "script,iframe,object,embed,link,meta,base,form,style,foreignObject,animate,set";

function harmless(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html");
  for (const element of parsed.querySelectorAll(ACTING)) element.remove();
  for (const element of parsed.querySelectorAll("*"))
    for (const { name, value } of [...element.attributes])
      if (/^on/i.test(name) || (/href$|^src$/i.test(name) && !value.startsWith("#"))) element.removeAttribute(name);
  return [...parsed.body.childNodes];
}

export default function ({ parentElement, data, setTriggerValue }) {
  const place = parentElement.querySelector(".dt");
  place.onclick = (event) => {
    const mark = event.target.closest("[data-go]");
    if (mark) setTriggerValue("go", mark.dataset.go);
  };
  const text = new TextDecoder().decode(data);
  if (place.shown === text) return;
  place.shown = text;
  place.replaceChildren(...harmless(text));
}
