// A field above the claims of appendix C. What does not hold all of its words is hidden, and so are
// chapters without a claim left, and the cell below a list of which nothing is left.
{
  const article = document.querySelector("article");
  const claims = [...article.querySelectorAll(".ft-claims > li")].map((item) => {
    const heading = item.closest("section").querySelector("h3, h2").textContent;
    return { item, text: `${heading} ${item.textContent}`.toLowerCase() };
  });

  const filter = document.createElement("div");
  filter.className = "ft-filter d-print-none";
  filter.innerHTML = `
    <label for="ft-filter">Find a claim, by words or by the number of a chapter</label>
    <input id="ft-filter" type="search" autocomplete="off">
    <span role="status"></span>`;
  article.querySelector("section > section").before(filter);
  const field = filter.querySelector("input");
  const status = filter.querySelector("[role=status]");

  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { item, text } of claims) {
      item.hidden = !words.every((word) => text.includes(word));
    }
    for (const list of article.querySelectorAll(".ft-claims")) {
      list.hidden = !list.querySelector(":scope > li:not([hidden])");
      const below = list.nextElementSibling;
      if (below?.matches(".cell")) below.hidden = list.hidden;
    }
    for (const section of article.querySelectorAll("section > section")) {
      section.hidden = !section.querySelector(".ft-claims > li:not([hidden])");
    }
    const n = claims.filter(({ item }) => !item.hidden).length;
    status.textContent = words.length ? `${n} of ${claims.length} claims` : "";
  };
  field.addEventListener("input", show);
}
