// What a reader can choose to guess for the target, by the engine's names. `step` is what costs time.
export const DRAFTS = {
  draft: {
    name: "shipped draft",
    about:
      "One of the target's layers, distilled from all eight. It reads the text by itself, and runs " +
      "once for each guess.",
    step: "a step of the draft",
  },
  pruned_draft: {
    name: "pruned draft",
    about:
      "One of the target's layers with 320 of its 512 neurons, distilled as well. It runs once for " +
      "each guess.",
    step: "a step of the draft",
  },
  suffix_automaton: {
    name: "suffix automaton",
    about:
      "No model. It finds where the last tokens stood before, two at least, and guesses what " +
      "followed there. If there is no such place, it guesses nothing.",
    step: "a guess that is looked up",
  },
  medusa_heads: {
    name: "Medusa's heads",
    about:
      "Four small matrices on the target's last feature, one for each place ahead. They guess all " +
      "at once, four tokens at most.",
    step: "a guess of the heads",
  },
  eagle_draft: {
    name: "EAGLE",
    about:
      "One layer that reads the target's features, and behind the text its own. It runs once for " +
      "each guess.",
    step: "a step of EAGLE's layer",
  },
};
