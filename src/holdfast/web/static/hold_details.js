/** The page that asks for what the event's form could not. */

import { clearErrorsOnInput } from "./field_errors.js";
import { HoldForm } from "./hold_form.js";
import { ProblemNotice } from "./problem.js";

const order = document.getElementById("order");
const problem = new ProblemNotice(document.getElementById("problem"));

clearErrorsOnInput(order);
new HoldForm(order, (refusal) => problem.show(refusal));
