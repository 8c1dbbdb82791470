// A thread that draws, so that the page can scroll meanwhile. First it is told what to open, then one pose at a time.

import { openEngine } from "./engine.js";

let opened = null;

async function answer({ library, target, pose, ...parts }) {
  if (!library) return (await opened)(target, pose);
  const address = URL.createObjectURL(new Blob([library], { type: "text/javascript" })); // a page from a disk shares none
  opened = import(address).then((ort) => openEngine(ort, parts));
  return opened.then(() => null);
}

onmessage = async ({ data }) => {
  try {
    postMessage({ drawing: await answer(data) });
  } catch (error) {
    postMessage({ failure: `this browser cannot draw it: ${error.message}` });
  }
};
