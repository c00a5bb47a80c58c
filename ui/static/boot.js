// Runs before anything is drawn: Gradio is to start in the right language and theme, and nothing to flash.
(() => {
  // Gradio's translations follow the browser's language; here they follow the one the server has chosen.
  const { dataset, lang } = document.documentElement;
  dataset.language = lang; // Gradio writes its own name of it into lang
  const language = lang === 'zh' ? 'zh-CN' : 'en';
  Object.defineProperty(navigator, 'language', { get: () => language });
  Object.defineProperty(navigator, 'languages', { get: () => [language] });

  const system = matchMedia('(prefers-color-scheme: dark)');
  const chosen = () => {
    try {
      return localStorage.getItem('firstlook-theme');
    } catch {
      return null;
    }
  };
  const apply = () => {
    const dark = (chosen() ?? (system.matches ? 'dark' : 'light')) === 'dark';
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    document.body?.classList.toggle('dark', dark);
  };
  system.addEventListener('change', apply);
  apply();

  // Gradio sets body.dark by the system's preference when it mounts; a choice made here goes before it.
  new MutationObserver((changes, observer) => {
    if (!document.body) return;
    observer.disconnect();
    apply();
    new MutationObserver(() => {
      const dark = document.documentElement.dataset.theme === 'dark';
      if (document.body.classList.contains('dark') !== dark) apply();
    }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
  }).observe(document.documentElement, { childList: true });

  window.firstlookTheme = {
    toggle() {
      const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
      try {
        const same = next === (system.matches ? 'dark' : 'light');
        if (same) localStorage.removeItem('firstlook-theme');
        else localStorage.setItem('firstlook-theme', next);
      } catch {
        // Without storage the choice lasts until the page is left.
      }
      document.documentElement.dataset.theme = next;
      document.body.classList.toggle('dark', next === 'dark');
    },
  };
})();
